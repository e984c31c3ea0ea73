"""`octavo chat` against a server in this process."""

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from rich.console import Console

from octavo_engine.cli.chat import ServerError, answer_parts, first_model, talk


class FakeServer(BaseHTTPRequestHandler):
    """Streams the last message back in capitals; refuses what says `refuse`."""

    bodies: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._send(200, json.dumps({"data": [{"id": "m1"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text == "refuse":
            self._send(400, json.dumps({"error": {"message": "no thanks"}}))
            return
        deltas = [{"role": "assistant", "content": ""}, *({"content": c} for c in text.upper())]
        events = [json.dumps({"choices": [{"delta": delta}]}) for delta in deltas]
        self._send(200, "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]))

    def _send(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args: Any) -> None:
        """Quiet."""


@pytest.fixture
def http() -> Iterator[httpx.Client]:
    handler = type("Handler", (FakeServer,), {"bodies": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}/v1") as client:
            client.bodies = handler.bodies  # type: ignore[attr-defined]  # the test's own attribute
            yield client
        server.shutdown()
        thread.join()


def test_answer_is_joined_from_its_pieces(http: httpx.Client) -> None:
    body = {"model": "m1", "messages": [{"role": "user", "content": "hey"}]}
    assert "".join(answer_parts(http, body)) == "HEY"


def test_refusal_is_the_servers_sentence(http: httpx.Client) -> None:
    body = {"model": "m1", "messages": [{"role": "user", "content": "refuse"}]}
    with pytest.raises(ServerError, match="no thanks"):
        list(answer_parts(http, body))


def test_first_model_is_the_default(http: httpx.Client) -> None:
    assert first_model(http) == "m1"


def test_conversation_remembers_what_was_said(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    out = io.StringIO()
    talk(Console(file=out), http, {"model": "m1"}, [])
    assert out.getvalue() == "ONE\nTWO\n"
    second = http.bodies[1]  # type: ignore[attr-defined]  # the test's own attribute
    assert [m["content"] for m in second["messages"][:3]] == ["one", "ONE", "two"]
