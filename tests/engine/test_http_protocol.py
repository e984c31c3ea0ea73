"""HTTP below the routes: heads in any pieces, offers of other protocols, what is no HTTP at all."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.test_server_life import process

from octavo_engine.server.http_protocol import MAX_HEAD_BYTES, BoundedHttp, HeadReader

HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    b"uPgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
    b"Content-Type: application/json\r\n"
)
"""As Java's client sends it."""


def request(**fields: object) -> bytes:
    body = json.dumps({"model": "echo", "prompt": "a", **fields}).encode()
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            self._writer.write(piece)
            await self._writer.drain()
            await asyncio.sleep(0.01)  # so that they arrive one by one

    async def keep_sending(self, piece: bytes) -> None:
        async with asyncio.timeout(20):
            while True:
                await self.send(piece)

    async def answer(self) -> tuple[bytes, bytes]:
        """Head and body."""
        head = await asyncio.wait_for(self._reader.readuntil(b"\r\n\r\n"), 20)
        if b"100 Continue" in head:
            return head, b""
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        return head, await asyncio.wait_for(self._reader.readexactly(size), 20)

    async def is_closed(self) -> bool:
        return await asyncio.wait_for(self._reader.read(), 20) == b""


@asynccontextmanager
async def connection(engine: EchoEngine | None = None) -> AsyncIterator[Connection]:
    async with process(engine or EchoEngine(always("Hi."))) as server:
        await server.until_status("/readyz", 200)
        url = server.http.base_url
        reader, writer = await asyncio.open_connection(url.host, url.port)
        try:
            yield Connection(reader, writer)
        finally:
            writer.close()


async def test_an_offer_of_http_2_is_passed_over_and_its_body_read() -> None:
    at = len(HEAD) // 2
    async with connection() as client:
        for pieces in ([request()], [request()[:at], request()[at:]], [request()]):
            await client.send(*pieces)
            head, body = await client.answer()
            assert head.startswith(b"HTTP/1.1 200"), body
            assert json.loads(body)["choices"][0]["text"] == "Hi."


async def test_a_long_body_that_comes_with_the_end_of_its_head_is_read() -> None:
    whole = request(prompt="a" * 2 * MAX_HEAD_BYTES)
    async with connection(EchoEngine(always("Hi."), max_model_len=300_000)) as client:
        await client.send(whole[:40], whole[40:])
        assert (await client.answer())[0].startswith(b"HTTP/1.1 200")


async def test_requests_sent_at_once_are_answered_in_their_order() -> None:
    plain = request().replace(b"uPgrade: h2c\r\n", b"")
    async with connection() as client:
        await client.send(plain + b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n" + plain)
        bodies = [json.loads((await client.answer())[1]) for _ in range(3)]
    assert ["choices" in body for body in bodies] == [True, False, True]


async def test_a_client_that_waits_is_told_to_send_its_body() -> None:
    head, _, body = request().partition(b"\r\n\r\n")
    async with connection() as client:
        await client.send(head + b"\r\nExpect: 100-continue\r\n\r\n")
        assert (await client.answer())[0].startswith(b"HTTP/1.1 100 Continue")
        await client.send(body)
        assert (await client.answer())[0].startswith(b"HTTP/1.1 200")


async def test_what_is_no_http_gets_an_error_in_the_form_of_all_others() -> None:
    async with connection() as client:
        await client.send(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")  # a TLS client's hello
        head, body = await client.answer()
        assert await client.is_closed()
    assert head.startswith(b"HTTP/1.1 400")
    assert b"server:" not in head
    assert json.loads(body)["error"]["code"] == "invalid_http"


async def test_a_head_that_does_not_come_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async with connection() as client:
        await client.send(request())
        assert (await client.answer())[0].startswith(b"HTTP/1.1 200")
        monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.2)
        await client.send(b"GET /livez HTT")
        assert await client.is_closed()


async def test_a_connection_without_a_request_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.2)
    async with connection() as client:
        assert await client.is_closed()


async def test_the_limit_of_a_head_is_not_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.3)
    engine = EchoEngine(always("Hi."))
    engine.gate.clear()
    async with connection(engine) as client:
        await client.send(request(), b"GET /livez HTT")  # a part of the next one
        asyncio.get_running_loop().call_later(1, engine.gate.set)
        assert (await client.answer())[0].startswith(b"HTTP/1.1 200")
        assert await client.is_closed()


async def test_the_rest_of_a_body_that_was_refused_has_an_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    async with connection() as client:
        await client.send(head + b"Content-Length: 99999999999\r\n\r\n")
        assert (await client.answer())[0].startswith(b"HTTP/1.1 413")
        monkeypatch.setattr(BoundedHttp, "head_limit_s", 0.2)
        with pytest.raises(ConnectionError):
            await client.keep_sending(b"x" * 1000)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, len(HEAD)), max_size=12))
def test_a_head_is_the_same_however_it_is_cut(points: list[int]) -> None:
    message = HEAD + b"\r\nUpgrade: as a body's text"
    edges = [0, *sorted(points), len(message)]
    reader = HeadReader()
    pieces = [reader.push(message[start:end]) for start, end in pairwise(edges)]
    assert b"".join(pieces) == message.replace(b"uPgrade: h2c", b"x-upgrade: h2c")
    assert reader.num_bytes == 0


@pytest.mark.parametrize(
    ("path", "status"),
    [("/livez", 200), ("/metrics", 200), ("/v1/models", 200), ("/v1/completions", 405)],
)
async def test_head_is_answered_as_get_without_a_body(path: str, status: int) -> None:
    async with process(EchoEngine(always("x"))) as server:
        await server.until_status("/readyz", 200)
        answer = await server.http.head(path)
        plain = await server.http.get(path)
    assert (answer.status_code, answer.content) == (status, b"")
    assert answer.headers["content-type"] == plain.headers["content-type"]
