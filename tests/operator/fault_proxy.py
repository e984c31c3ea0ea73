"""A test proxy before the API server that answers wrongly, late or not at all, at random.

Plain HTTP on loopback, so that it sees each call; the faults are drawn from a seed.
"""

import asyncio
import random
import ssl
import threading
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_NOT_FORWARDED = frozenset(
    {"host", "content-length", "transfer-encoding", "connection", "content-encoding"}
)
RETRY_AFTER_S = 1


@dataclass(frozen=True)
class Faults:
    """Shares of the calls that fare so; what is left is forwarded as it is."""

    too_many: float = 0.06
    """429 with Retry-After, not forwarded."""
    conflict: float = 0.1
    """409, not forwarded; writes only."""
    error: float = 0.05
    """500, not forwarded."""
    lost_answer: float = 0.04
    """Forwarded, and then answered by 500."""
    cut: float = 0.03
    """The connection is ended without an answer."""
    delay: float = 0.15
    """Forwarded up to `longest_delay_s` later."""
    longest_delay_s: float = 2.0
    longest_watch_s: float = 6.0
    """Each watch is cut after a random time of at most this."""


class FaultProxy:
    """Runs in a thread of its own from the first moment on; passes everything until `disturb`."""

    def __init__(self, api_server_url: str, authority: str, seed: int) -> None:
        """`authority`: the certificate, in PEM, of who signed the API server's."""
        self._target = api_server_url
        self._tls = ssl.create_default_context(cadata=authority)
        self._random = random.Random(seed)
        self._faults: Faults | None = None
        self.counts: Counter[str] = Counter()
        """Kind of fault -> how often."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._run(self._start())
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def disturb(self, faults: Faults) -> None:
        self._faults = faults

    def calm(self) -> None:
        self._faults = None

    def remove(self) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(timeout=20)

    async def _start(self) -> None:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        application = web.Application(client_max_size=16 * 1024**2)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            application, access_log=None, handler_cancellation=True, shutdown_timeout=1
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._session.close()
        # Connections with TLS end in the loop's next rounds, which nothing tells of.
        await asyncio.sleep(0.25)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        faults = self._faults
        if request.query.get("watch") == "true":
            return await self._watch(request)
        if faults is None:
            return await self._forward(request)
        kind = self._draw(faults, is_write=request.method in _WRITES)
        self.counts[kind] += 1
        match kind:
            case "too_many":
                headers = {"Retry-After": str(RETRY_AFTER_S)}
                return _status(429, "too many requests (test proxy)", headers)
            case "conflict":
                return _status(409, "the object has been modified (test proxy)")
            case "error":
                return _status(500, "no luck today (test proxy)")
            case "lost_answer":
                await self._forward(request)
                return _status(500, "done, but not told (test proxy)")
            case "cut":
                return _cut(request)
            case "delay":
                await asyncio.sleep(self._random.uniform(0, faults.longest_delay_s))
        return await self._forward(request)

    def _draw(self, faults: Faults, *, is_write: bool) -> str:
        left = self._random.random()
        kinds = ("too_many", "conflict", "error", "lost_answer", "cut", "delay")
        for kind in kinds:
            if kind == "conflict" and not is_write:
                continue
            left -= getattr(faults, kind)
            if left < 0:
                return kind
        return "none"

    async def _forward(self, request: web.Request) -> web.Response:
        async with self._ask(request) as answer:
            body = await answer.read()
            return web.Response(status=answer.status, headers=_kept(answer.headers), body=body)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        async with self._ask(request) as answer:
            response = web.StreamResponse(status=answer.status, headers=_kept(answer.headers))
            await response.prepare(request)
            begun_s = self._loop.time()
            share = self._random.random()
            while True:
                try:
                    async with asyncio.timeout(0.2):
                        chunk = await answer.content.readany()
                except TimeoutError:
                    chunk = None
                if chunk == b"":
                    return response
                if chunk:
                    await response.write(chunk)
                faults = self._faults
                if faults and self._loop.time() - begun_s > share * faults.longest_watch_s:
                    self.counts["watch"] += 1
                    return _cut(request, response)

    @asynccontextmanager
    async def _ask(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = {k: v for k, v in request.headers.items() if k.lower() not in _NOT_FORWARDED}
        body = await request.read()
        async with self._session.request(
            request.method, self._target + request.raw_path, headers=headers, data=body or None
        ) as answer:
            yield answer


def _kept(headers: Any) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in _NOT_FORWARDED}


def _status(code: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return web.json_response(
        {**body, "message": message, "code": code}, status=code, headers=headers
    )


def _cut(request: web.Request, response: web.StreamResponse | None = None) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return response or web.Response()
