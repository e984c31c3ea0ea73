"""Lets nobody past who shows no valid key. Around the whole application, so a new route is closed.

What watches the server needs no key: probes, Prometheus, the version.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from octavo_engine.server.api_keys import ApiKeys
from octavo_engine.server.errors import ApiError

OPEN_PATHS = frozenset({"/livez", "/readyz", "/startupz", "/health", "/version", "/metrics"})
"""Answered without a key: they cost nothing and change nothing."""


class RequireKey:
    """ASGI middleware; a plain class, because starlette's base for middleware buffers streams."""

    def __init__(self, app: ASGIApp, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS
        if is_open or not self._keys.are_required or self._keys.allow(_shown_key(scope)):
            await self._app(scope, receive, send)
            return
        error = ApiError(401, _complaint(_shown_key(scope)), code="invalid_api_key")
        response = error.response()
        response.headers["WWW-Authenticate"] = "Bearer"
        await response(scope, receive, send)


def _shown_key(scope: Scope) -> str:
    scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""


def _complaint(key: str) -> str:
    if not key:
        return "No API key was given; send it as 'Authorization: Bearer KEY'."
    return "Incorrect API key provided."  # never quoted: it may be a right one with a typo
