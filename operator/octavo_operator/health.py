"""The operator's own HTTP: /healthz and /metrics. Health is staleness, not an open port."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from octavo_operator.metrics import Metrics

Check = Callable[[], str | None]
"""None when all is well, else a sentence that says what is stale."""


def app(check: Check, metrics: Metrics, refresh: Callable[[], None]) -> web.Application:
    """`refresh` brings up to date what is counted only when it is asked for."""

    async def healthz(_: web.Request) -> web.Response:
        problem = check()
        if problem is None:
            return web.Response(text="ok\n")
        return web.Response(status=503, text=problem + "\n")

    async def metricsz(_: web.Request) -> web.Response:
        refresh()
        body = generate_latest(metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    built = web.Application()
    built.router.add_get("/healthz", healthz)
    built.router.add_get("/metrics", metricsz)
    return built


@asynccontextmanager
async def serving(application: web.Application, host: str, port: int) -> AsyncIterator[int]:
    """Gives the port, which is the kernel's choice where 0 was asked for."""
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, host, port)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
