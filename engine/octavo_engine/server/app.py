"""The ASGI application: routes and what every error looks like. Starts and loads nothing."""

from collections.abc import Awaitable, Callable

import structlog
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from octavo_engine.server import generation_routes, tokenize_routes
from octavo_engine.server.auth import RequireKey
from octavo_engine.server.disconnect import ClientGone
from octavo_engine.server.errors import ApiError
from octavo_engine.server.generation_routes import generation_router
from octavo_engine.server.head import HeadAsGet
from octavo_engine.server.http_metrics import MeasureHttp
from octavo_engine.server.info_routes import info_router
from octavo_engine.server.metrics_registry import ServerMetrics
from octavo_engine.server.openapi import complete_openapi
from octavo_engine.server.state import ServerState
from octavo_engine.server.tokenize_routes import tokenize_router
from octavo_engine.version import octavo_version

REJECTIONS = frozenset({"queue_full", "overloaded", "loading", "draining", "engine_dead"})
"""Codes of errors that are nobody's mistake: there is too much work, or no engine for it."""

_ROUTING_CODES = {404: "unknown_url", 405: "method_not_supported"}


def build_app(state: ServerState) -> FastAPI:
    app = FastAPI(title="Octavo", version=octavo_version(), redoc_url=None)
    app.add_middleware(RequireKey, keys=state.keys)
    app.add_middleware(MeasureHttp, metrics=state.metrics)  # around the key: it sees refusals too
    app.add_middleware(HeadAsGet)
    app.include_router(info_router(state))
    app.include_router(generation_router(state))
    app.include_router(tokenize_router(state))
    bodies = {**generation_routes.BODIES, **tokenize_routes.BODIES}
    complete_openapi(app, state.settings.served_model_names, bodies)
    app.add_exception_handler(ApiError, _api_error_handler(state.metrics))
    app.add_exception_handler(ClientGone, _client_gone)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    return app


def _api_error_handler(
    metrics: ServerMetrics,
) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def answer(request: Request, error: Exception) -> Response:
        assert isinstance(error, ApiError)
        if error.code in REJECTIONS:
            metrics.count_rejection(error.code)
        response = error.response()
        if hasattr(request.state, "request_id"):
            response.headers["X-Request-Id"] = request.state.request_id
        return response

    return answer


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)


async def _http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and wrong methods, which the router answers."""
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    code = _ROUTING_CODES.get(error.status_code)
    response = ApiError(error.status_code, message, code=code).response()
    response.headers.update(error.headers or {})
    return response


async def _unexpected(request: Request, error: Exception) -> Response:
    structlog.get_logger().exception("request failed", path=request.url.path, exc_info=error)
    return ApiError(500, "internal error").response()
