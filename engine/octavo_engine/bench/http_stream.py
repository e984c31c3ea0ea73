"""A small HTTP client that hands over a body as it comes: the load must cost less than the server.

Keeps connections open and uses them again. Knows no SSE and no JSON.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import httptools

OnBody = Callable[[bytes], None]


class HttpClient:
    """Of one server. Raises OSError when it cannot be reached or hangs up in the middle."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or parts.hostname is None:
            raise ValueError(f"not an http or https address: {url!r}")
        self._host = parts.hostname
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._port = parts.port or (443 if self._tls else 80)
        self._base_path = parts.path.rstrip("/")
        own = {"Host": parts.netloc.rpartition("@")[2], "Content-Type": "application/json"}
        lines = [f"{name}: {value}\r\n" for name, value in {**own, **headers}.items()]
        self._head = "".join(lines).encode()
        self._idle: list[_Connection] = []

    async def post(self, path: str, body: bytes, on_body: OnBody) -> int:
        """The status; `on_body` has got each piece of the answer's body when it came."""
        connection = self._idle.pop() if self._idle else await self._connect()
        request = f"POST {self._base_path}{path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n"
        try:
            status = await connection.ask(request.encode() + self._head + b"\r\n" + body, on_body)
        except BaseException:
            connection.close()
            raise
        if connection.can_be_used_again:
            self._idle.append(connection)
        else:
            connection.close()
        return status

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    async def _connect(self) -> "_Connection":
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            _Connection, self._host, self._port, ssl=self._tls
        )
        return connection


class _Connection(asyncio.Protocol):
    """One request at a time. The methods called `on_...` are the parser's."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answer: asyncio.Future[int] | None = None
        self._take: OnBody = lambda _: None
        self._is_lost = False
        self._keeps_alive = False

    @property
    def can_be_used_again(self) -> bool:
        return self._keeps_alive and not self._is_lost

    async def ask(self, request: bytes, on_body: OnBody) -> int:
        if self._is_lost or self._transport is None:
            raise ConnectionResetError("the server closed the connection")
        self._parser = httptools.HttpResponseParser(self)
        self._take = on_body
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(ConnectionError(f"not HTTP: {error}"))
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        self._fail(exc or ConnectionResetError("the server hung up in the middle of an answer"))

    def on_body(self, body: bytes) -> None:
        self._take(body)

    def on_message_complete(self) -> None:
        self._keeps_alive = self._parser.should_keep_alive()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._parser.get_status_code())

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
