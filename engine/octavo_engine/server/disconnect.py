"""Work that ends when its client leaves, and the event stream built on it."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):
    """The client closed its connection; there is nobody to answer."""


async def run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`; when the client leaves first, `work` is cancelled.

    Raises `ClientGone` after the cancelled work has cleaned up, and whatever `work` raises.
    """
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        watcher.cancel()
        task.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response of server-sent events; closes its generator as soon as the client leaves."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        on_end: Callable[[], object],
        keep_alive_s: float,
    ) -> None:
        """`on_end` is called once the stream is over, however it ends. After `keep_alive_s` seconds
        of silence a comment goes out, so that proxies do not cut a request that waits."""
        own_headers = {"cache-control": "no-cache", "x-accel-buffering": "no"}  # for nginx
        super().__init__(headers={**own_headers, **headers})
        del self.headers["content-length"]
        self._events = events
        self._on_end = on_end
        self._keep_alive_s = keep_alive_s
        self._last_sent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # A client that is gone needs no answer; the generator has ended its request and counted it.
        try:
            with suppress(ClientGone):
                await run_until_disconnect(receive, self._send_all(send))
        finally:
            self._on_end()

    async def _send_all(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        async with aclosing(self._events) as events:
            await send(start)
            keep_alive = asyncio.ensure_future(self._keep_alive(send))
            try:
                async for event in events:
                    await self._send_event(send, event)
            finally:
                keep_alive.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, send: Send) -> None:
        self._last_sent_s = time.monotonic()
        while True:
            silence_s = time.monotonic() - self._last_sent_s
            if silence_s >= self._keep_alive_s:
                await self._send_event(send, KEEP_ALIVE)
                silence_s = 0.0
            await asyncio.sleep(self._keep_alive_s - silence_s)

    async def _send_event(self, send: Send, event: bytes) -> None:
        self._last_sent_s = time.monotonic()
        await send({"type": "http.response.body", "body": event, "more_body": True})


def sse(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


DONE = sse(b"[DONE]")
KEEP_ALIVE = b": keep-alive\n\n"
