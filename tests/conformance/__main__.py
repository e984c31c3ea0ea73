"""Asks a server of OpenAI's API all that clients rely on, and prints a matrix.

python -m tests.conformance URL [--model NAME] [--api-key KEY] [--client NAME ...]
"""

import argparse

import httpx
from tests.conformance.report import print_matrix
from tests.conformance.suite import CLIENTS, run_suite


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("url", help="of the server, without /v1")
    parser.add_argument("--model", help="default: the first that it lists")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--client", action="append", choices=CLIENTS, help="default: all")
    given = parser.parse_args()
    url = given.url.rstrip("/").removesuffix("/v1")
    headers = {"authorization": f"Bearer {given.api_key}"}
    model = given.model
    if model is None:
        listed = httpx.get(f"{url}/v1/models", headers=headers).raise_for_status().json()
        model = listed["data"][0]["id"]
    is_good = print_matrix(run_suite(url, model, given.api_key, given.client or CLIENTS))
    raise SystemExit(0 if is_good else 1)


if __name__ == "__main__":
    main()
