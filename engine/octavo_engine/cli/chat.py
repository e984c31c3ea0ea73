"""`octavo chat`: a conversation in the terminal with any OpenAI-compatible server."""

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Annotated

import httpx
import typer
from rich.console import Console

from octavo_engine.cli.termination import EXIT_FAILED

UrlOption = Annotated[str, typer.Option(help="The server's address, with or without /v1.")]
ModelOption = Annotated[str | None, typer.Option(help="Default: the server's first model.")]
SystemOption = Annotated[str | None, typer.Option(help="Instructions before the conversation.")]
KeyOption = Annotated[
    str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key to send, where one is needed.")
]
TemperatureOption = Annotated[float | None, typer.Option(min=0, max=2, help="0 is greedy.")]
TokensOption = Annotated[int | None, typer.Option(min=1, help="Longest answer, in tokens.")]

Message = dict[str, str]


class ServerError(Exception):
    """What the server said instead of an answer."""


def chat(
    url: UrlOption = "http://127.0.0.1:8000",
    model: ModelOption = None,
    system: SystemOption = None,
    api_key: KeyOption = None,
    temperature: TemperatureOption = None,
    max_tokens: TokensOption = None,
) -> None:
    """Chat in the terminal. An empty line or Ctrl-D ends; Ctrl-C cuts an answer short."""
    console = Console()
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    options = {"temperature": temperature, "max_tokens": max_tokens}
    with httpx.Client(
        base_url=base_url, headers=headers, timeout=httpx.Timeout(10, read=None)
    ) as http:
        try:
            fields = {"model": model or first_model(http)} | {
                name: value for name, value in options.items() if value is not None
            }
            talk(console, http, fields, [{"role": "system", "content": system}] if system else [])
        except (httpx.HTTPError, ServerError) as error:
            typer.echo(f"octavo: {base_url}: {error}", err=True)
            raise typer.Exit(EXIT_FAILED) from error


def talk(
    console: Console, http: httpx.Client, fields: Mapping[str, object], messages: list[Message]
) -> None:
    """Reads a line, prints its answer, until there is no more."""
    while line := _read_line(console):
        messages.append({"role": "user", "content": line})
        parts: list[str] = []
        try:
            for part in answer_parts(http, {**fields, "messages": messages}):
                parts.append(part)
                console.print(part, end="", markup=False, highlight=False)
        except KeyboardInterrupt:
            pass  # the connection is closed, so the server stops too
        console.print()
        messages.append({"role": "assistant", "content": "".join(parts)})


def answer_parts(http: httpx.Client, body: dict[str, object]) -> Iterator[str]:
    """Pieces of the answer's text as they come. Raises `ServerError` with the server's sentence."""
    with http.stream("POST", "/chat/completions", json={**body, "stream": True}) as response:
        if response.status_code != 200:
            response.read()
            raise ServerError(_sentence(response))
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            chunk = json.loads(data)
            if "error" in chunk:
                raise ServerError(chunk["error"]["message"])
            for choice in chunk["choices"]:
                yield choice["delta"].get("content") or ""


def first_model(http: httpx.Client) -> str:
    response = http.get("/models")
    if response.status_code != 200:
        raise ServerError(_sentence(response))
    return str(response.json()["data"][0]["id"])


def _sentence(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"status {response.status_code}: {response.text[:200]}"


def _read_line(console: Console) -> str:
    try:
        return console.input("[bold]> [/bold]" if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return ""
