"""Counts and times every request by method, route and class of status. ASGI middleware."""

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo_engine.server.metrics_registry import ServerMetrics

_METHODS = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "PATCH", "DELETE"})
_NO_ANSWER = 499
"""The client left before there was one."""


class MeasureHttp:
    def __init__(self, app: ASGIApp, metrics: ServerMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status, began_s = _NO_ANSWER, time.monotonic()

        async def note_status(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, note_status)
        except Exception:
            status = 500
            raise
        finally:
            # Only what is known may become a label: clients choose methods and paths.
            method = scope["method"] if scope["method"] in _METHODS else "other"
            route = getattr(scope.get("route"), "path", "none")
            seconds = time.monotonic() - began_s
            self._metrics.observe_http(method, route, status, seconds)
