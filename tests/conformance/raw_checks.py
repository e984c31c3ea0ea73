"""The server at the level of bytes: connections, chunks, and clients that behave badly."""

import json
import socket
from contextlib import closing
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from tests.conformance.report import Check

_LIMIT_S = 120
_HEAD_END = b"\r\n\r\n"


class RawChecks:
    """Plain HTTP only."""

    def __init__(self, url: str, model: str, headers: dict[str, str]) -> None:
        address = urlsplit(url)
        self._address = (address.hostname or "127.0.0.1", address.port or 80)
        self._model = model
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())

    def checks(self) -> dict[str, Check]:
        return {
            "completion": self._completion,
            "two requests, one connection": self._keep_alive,
            "body in chunks": self._chunked_body,
            "stream ends with [DONE]": self._stream,
            "broken JSON is a 400": self._broken_json,
            "a client that leaves": self._leave,
            "request in single bytes": self._slow_bytes,
            "two requests at once": self._pipelined,
            "an offer of HTTP/2 is passed over": self._upgrade,
            "a client that waits for 100 Continue": self._expect,
        }

    def _connect(self) -> socket.socket:
        return socket.create_connection(self._address, timeout=_LIMIT_S)

    def _request(self, body: bytes, extra: str = "") -> bytes:
        length = "" if "chunked" in extra else f"content-length: {len(body)}\r\n"
        head = (
            "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"{self._headers}{length}{extra}\r\n"
        )
        return head.encode() + body

    def _body(self, **fields: Any) -> bytes:
        asked = {"model": self._model, "prompt": "Once", "max_tokens": 4, "temperature": 0}
        return json.dumps({**asked, **fields}).encode()

    def _completion(self) -> None:
        with closing(self._connect()) as connection:
            connection.sendall(self._request(self._body()))
            status, body = _read_answer(connection)
        assert status == 200, body
        assert json.loads(body)["choices"][0]["text"]

    def _keep_alive(self) -> None:
        with closing(self._connect()) as connection:
            texts = []
            for _ in range(2):
                connection.sendall(self._request(self._body()))
                status, body = _read_answer(connection)
                assert status == 200, body
                texts.append(json.loads(body)["choices"][0]["text"])
        assert texts[0] == texts[1]

    def _chunked_body(self) -> None:
        body = self._body()
        chunks = b"".join(b"%x\r\n%s\r\n" % (1, body[at : at + 1]) for at in range(len(body)))
        extra = "transfer-encoding: chunked\r\n"
        with closing(self._connect()) as connection:
            connection.sendall(self._request(chunks + b"0\r\n\r\n", extra))
            status, answer = _read_answer(connection)
        assert status == 200, answer

    def _stream(self) -> None:
        with closing(self._connect()) as connection:
            connection.sendall(self._request(self._body(stream=True)))
            status, body = _read_answer(connection)
        assert status == 200, body
        events = body.decode().split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        assert all(json.loads(event.removeprefix("data: ")) for event in events[:-2])

    def _broken_json(self) -> None:
        with closing(self._connect()) as connection:
            connection.sendall(self._request(b'{"model": '))
            status, body = _read_answer(connection)
        assert status == 400, body
        assert json.loads(body)["error"]["message"]

    def _leave(self) -> None:
        with closing(self._connect()) as connection:
            connection.sendall(self._request(self._body(stream=True, max_tokens=500)))
            assert connection.recv(20).startswith(b"HTTP/1.1 200")
        self._completion()

    def _slow_bytes(self) -> None:
        with closing(self._connect()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for byte in self._request(self._body()):
                connection.sendall(bytes([byte]))
            status, body = _read_answer(connection)
        assert status == 200, body

    def _pipelined(self) -> None:
        with closing(self._connect()) as connection:
            connection.sendall(self._request(self._body()) * 2)
            file = connection.makefile("rb")
            answers = [_read_answer_of(file) for _ in range(2)]
        assert [status for status, _ in answers] == [200, 200], answers

    def _upgrade(self) -> None:
        """Java's client makes one with every request in plain text."""
        offer = (
            "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
        )
        with closing(self._connect()) as connection:
            connection.sendall(self._request(self._body(), offer))
            status, body = _read_answer(connection)
        assert status == 200, body

    def _expect(self) -> None:
        head, _, body = self._request(self._body(), "expect: 100-continue\r\n").partition(_HEAD_END)
        with closing(self._connect()) as connection:
            connection.sendall(head + _HEAD_END)
            file = connection.makefile("rb")
            assert file.readline().split()[1] == b"100"
            assert file.readline() == b"\r\n"
            connection.sendall(body)
            status, answer = _read_answer_of(file)
        assert status == 200, answer


def _read_answer(connection: socket.socket) -> tuple[int, bytes]:
    return _read_answer_of(connection.makefile("rb"))


def _read_answer_of(file: BinaryIO) -> tuple[int, bytes]:
    """Status and body, the body put together from its chunks where it comes in some."""
    status = int(file.readline().split()[1])
    headers: dict[bytes, bytes] = {}
    while (line := file.readline().strip()) != b"":
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    if b"content-length" in headers:
        return status, file.read(int(headers[b"content-length"]))
    assert headers[b"transfer-encoding"] == b"chunked", headers
    body = b""
    while (size := int(file.readline(), 16)) > 0:
        body += file.read(size)
        assert file.readline() == b"\r\n"
    assert file.readline() == b"\r\n"
    return status, body
