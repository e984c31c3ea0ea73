"""The HTTP parser that uvicorn uses, with bounds on what comes before a body and on its time.

httptools itself keeps a header that never ends until the memory does, and takes no body of a
request that offers another protocol. Java's client offers HTTP/2 with each request that it makes in
plain text; whoever does not speak it answers as if nothing had been said (RFC 9110, 7.8).
"""

import asyncio
import re

import httptools
import msgspec
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from octavo_engine.server.errors import ApiError

MAX_HEAD_BYTES = 64 * 1024
"""Of request line and headers while they are incomplete, and of each header."""

_HEAD_END, _UPGRADE = b"\r\n\r\n", b"\r\nupgrade:"
_ANY_UPGRADE = re.compile(re.escape(_UPGRADE), re.IGNORECASE)


class HeadReader:
    """Passes a head on, in whatever pieces it comes, without the offer of another protocol."""

    def __init__(self) -> None:
        self._held = b""
        self.num_bytes = 0
        """Of the head so far; of none once it is complete."""

    def push(self, data: bytes) -> bytes:
        """What can be parsed now. `data` begins within a head, and may go on behind it."""
        self.num_bytes += len(data)
        data = self._held + data
        end = data.find(_HEAD_END)
        if end < 0:
            end = len(data) - _num_undecided(data)
            self._held, data = data[end:], data[:end]
        else:
            self._held, self.num_bytes = b"", 0
        return _ANY_UPGRADE.sub(b"\r\nx-upgrade:", data[:end]) + data[end:]


def _num_undecided(data: bytes) -> int:
    """Bytes at the end that may be the beginning of what is looked for."""
    for size in range(min(len(_UPGRADE) - 1, len(data)), 0, -1):
        tail = data[len(data) - size :].lower()
        if _UPGRADE.startswith(tail) or _HEAD_END.startswith(tail):
            return size
    return 0


class BoundedHttp(HttpToolsProtocol):
    head_limit_s = 75.0
    """From a connection's start, or from the first byte of a later request, to the end of its
    head. As long as an idle connection is kept; a body has a limit of its own, and what still comes
    of it behind its answer has this one."""

    _is_in_head = True
    _head: HeadReader | None = None
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn's own
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_in_head:
            self._start_timer()
            self._head = self._head or HeadReader()
            data = self._head.push(data)
            if self._head.num_bytes > MAX_HEAD_BYTES:
                self.logger.warning("request head over %d bytes", MAX_HEAD_BYTES)
                self.send_400_response("Request head too large.")
                return
        elif self.cycle is not None and self.cycle.response_complete:
            self._start_timer()  # the rest of a body that was refused
        super().data_received(data)

    def on_message_begin(self) -> None:
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) + len(value) > MAX_HEAD_BYTES:
            raise httptools.HttpParserError("header too large")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_in_head = True
        super().on_message_complete()

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.head_limit_s, self._give_up)

    def _give_up(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()
        else:
            self._start_timer()  # the request before is still being answered

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def send_400_response(self, msg: str) -> None:
        """In the form of all other errors; the connection cannot be used any more."""
        content = msgspec.json.encode(ApiError(400, msg, code="invalid_http").body())
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(content)),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[400] + lines + b"\r\n" + content)
        self.transport.close()
