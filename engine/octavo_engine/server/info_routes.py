"""Health, models, version and metrics: routes that answer at once whatever the load."""

import asyncio

from fastapi import APIRouter
from prometheus_client import generate_latest
from starlette.responses import Response

from octavo_engine.server.errors import ApiError, json_response
from octavo_engine.server.response_types import ModelCard, ModelList
from octavo_engine.server.state import Phase, ServerState
from octavo_engine.version import octavo_version

CONTENT_TYPE_PLAIN_0_0_4 = "text/plain; version=0.0.4; charset=utf-8"


def info_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> Response:
        problem = liveness_problem(state)
        return _health(problem, state)

    @router.get("/readyz")
    @router.get("/health")
    async def readyz() -> Response:
        problem = readiness_problem(state)
        return _health(problem, state)

    @router.get("/startupz")
    async def startupz() -> Response:
        told = {"percent": state.startup.percent, "seconds": state.startup.rounded_seconds()}
        if state.loaded is None:
            stage = state.startup.stage or "starting"
            return json_response({"status": "unavailable", "stage": stage, **told}, 503)
        return json_response({"status": "ok", "stage": "loaded", **told})

    @router.get("/version")
    async def version() -> Response:
        return json_response({"version": octavo_version()})

    @router.get("/metrics")
    async def metrics() -> Response:
        state.metrics.draining.set(state.phase not in (Phase.LOADING, Phase.READY))
        state.metrics.tell_phase(state.phase, list(Phase))
        # Always the plain text format: in OpenMetrics the client library turns the colons of the
        # names, which dashboards know, into underscores.
        content = await asyncio.to_thread(generate_latest, state.metrics.registry)
        return Response(content, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4})

    @router.get("/v1/models")
    async def models() -> Response:
        return json_response(ModelList(data=_model_cards(state)))

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        state.require_model(name)
        return json_response(next(card for card in _model_cards(state) if card.id == name))

    return router


def liveness_problem(state: ServerState) -> str | None:
    """Why this process should be restarted, or None. Progress is what counts, not a flag."""
    if state.loaded is None:
        return None
    if state.loaded.engine.death is not None:
        return state.loaded.engine.death
    stats = state.loaded.engine.stats()
    if stats.silence_s > state.settings.stall_limit_s:
        return f"the engine's process has said nothing for {stats.silence_s:.0f} s"
    if stats.has_work and stats.last_step_age_s > state.settings.stall_limit_s:
        return f"work waits and no step was made for {stats.last_step_age_s:.0f} s"
    return None


def readiness_problem(state: ServerState) -> str | None:
    """Why this process should get no new requests, or None."""
    if state.phase is not Phase.READY:
        return state.phase.value
    return liveness_problem(state)


def _health(problem: str | None, state: ServerState) -> Response:
    if problem is None:
        return json_response({"status": "ok", "phase": state.phase.value})
    content = {"status": "unavailable", "phase": state.phase.value, "reason": problem}
    return json_response(content, 503)


def _model_cards(state: ServerState) -> list[ModelCard]:
    if state.loaded is None:
        raise ApiError(503, "the model is still loading", code="loading", retry_after_s=5)
    max_model_len = state.loaded.engine.info.max_model_len
    created_s = state.loaded.created_s
    return [
        ModelCard(id=name, created=created_s, max_model_len=max_model_len)
        for name in state.settings.served_model_names
    ]
