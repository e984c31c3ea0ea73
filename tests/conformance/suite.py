"""Which clients there are and how each is run."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx
from tests.conformance.http_checks import HttpChecks
from tests.conformance.raw_checks import RawChecks
from tests.conformance.report import Finding, findings_of, run_checks
from tests.conformance.venvs import OLD_CLIENTS, python_of

CURRENT = "openai"
CLIENTS = ("httpx", "raw", CURRENT, *OLD_CLIENTS)
CLIENT_LIMIT_S = 600


def run_suite(
    url: str, model: str, key: str = "none", clients: Sequence[str] = CLIENTS
) -> dict[str, list[Finding]]:
    return {client: run_client(client, url, model, key) for client in clients}


def run_client(client: str, url: str, model: str, key: str) -> list[Finding]:
    headers = {"authorization": f"Bearer {key}"}
    if client == "httpx":
        with httpx.Client(base_url=url, headers=headers, timeout=120) as http:
            return run_checks(HttpChecks(http, model).checks())
    if client == "raw":
        return run_checks(RawChecks(url, model, headers).checks())
    python = sys.executable if client == CURRENT else str(python_of(client))
    script = Path(__file__).with_name("openai_client.py")
    done = subprocess.run(
        [python, str(script), url, model, key],
        capture_output=True,
        text=True,
        timeout=CLIENT_LIMIT_S,
        check=False,
    )
    findings = findings_of(done.stdout)
    if done.returncode != 0:
        findings.append(Finding("the client runs", False, done.stderr[-500:]))
    return findings
