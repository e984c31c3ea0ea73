"""Answers HEAD as GET, for whoever watches a server so. The HTTP server leaves the body out."""

from starlette.types import ASGIApp, Receive, Scope, Send


class HeadAsGet:
    """ASGI middleware; around the routes, which know of GET alone."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            # A copy: the server looks into its own for whether there is a body.
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)
