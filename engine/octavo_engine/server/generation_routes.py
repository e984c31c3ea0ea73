"""POST /v1/chat/completions, /v1/completions and /v1/responses."""

import asyncio
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from fastapi import APIRouter, Request
from starlette.responses import Response

from octavo_engine.errors import RequestError
from octavo_engine.server.answers import Answering
from octavo_engine.server.body import read_request
from octavo_engine.server.chat_answer import ChatAnswer
from octavo_engine.server.completion_answer import CompletionAnswer
from octavo_engine.server.disconnect import ClientGone, EventStream, run_until_disconnect
from octavo_engine.server.errors import ApiError, from_engine, json_response
from octavo_engine.server.generation import Generation
from octavo_engine.server.prepare import Prepared, prepare_chat, prepare_completion
from octavo_engine.server.request_fields import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from octavo_engine.server.responses_answer import ResponsesAnswer
from octavo_engine.server.responses_chat import prepare_response
from octavo_engine.server.responses_fields import ResponsesRequest
from octavo_engine.server.state import Loaded, ServerState

F = TypeVar("F", bound=GenerationFields)

BODIES: dict[str, type[GenerationFields]] = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/responses": ResponsesRequest,
}
"""What is posted to each path."""

MAX_REQUEST_ID_CHARS = 128
MAX_CHOICES = 1024
"""Prompts of a request times the answers to each."""


def generation_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        return await _answer(
            request, state, ChatCompletionRequest, "chatcmpl", prepare_chat, ChatAnswer
        )

    @router.post("/v1/completions")
    async def completions(request: Request) -> Response:
        return await _answer(
            request, state, CompletionRequest, "cmpl", prepare_completion, CompletionAnswer
        )

    @router.post("/v1/responses")
    async def responses(request: Request) -> Response:
        return await _answer(
            request, state, ResponsesRequest, "resp", prepare_response, ResponsesAnswer
        )

    return router


async def _answer(
    request: Request,
    state: ServerState,
    kind: type[F],
    id_prefix: str,
    prepare: Callable[[F, Loaded, str, float], Prepared],
    answer_kind: Callable[..., Answering],
) -> Response:
    arrival_time_s = time.monotonic()
    request_id = request.state.request_id = _request_id(request)
    headers = {"X-Request-Id": request_id}
    loaded = state.require_engine()
    with ExitStack() as stack:
        stack.enter_context(state.in_flight())
        fields = await read_request(request, kind, state.settings)
        state.require_model(fields.model)
        answer_id = f"{id_prefix}-{request_id}"
        # A client may use an id twice at a time; the engine's ids are unique.
        engine_id = f"{answer_id}-{uuid.uuid4().hex[:8]}"
        try:
            prepared = await asyncio.to_thread(prepare, fields, loaded, engine_id, arrival_time_s)
        except RequestError as error:
            raise from_engine(error) from error
        _refuse_too_many(prepared)
        await _check_grammar(prepared, loaded, state)
        answer = answer_kind(fields, prepared.requests, loaded.tokenizer, answer_id)
        generation = Generation(state, loaded, prepared.requests, prepared.plan)
        stack.callback(_close, generation, state)
        if fields.stream:
            # The stream outlives this call and ends what is held here.
            end = stack.pop_all().close
            return EventStream(
                answer.events(generation), headers, end, state.settings.stream_keep_alive_s
            )
        try:
            whole = await run_until_disconnect(request.receive, answer.gather(generation))
        except ClientGone:
            return Response(status_code=499)  # nobody reads it; the access log shows it
        return json_response(whole, headers=headers)


def _refuse_too_many(prepared: Prepared) -> None:
    num_choices = sum(request.params.n for request in prepared.requests)
    if num_choices > MAX_CHOICES:
        message = f"the request asks for {num_choices} answers at once, more than {MAX_CHOICES}"
        raise ApiError(400, message, param="n", code="invalid_value")


async def _check_grammar(prepared: Prepared, loaded: Loaded, state: ServerState) -> None:
    for asked in dict.fromkeys(prepared.grammars):
        seconds = await loaded.grammars.check(asked)
        state.metrics.grammar_compile_s.observe(seconds)


def _close(generation: Generation, state: ServerState) -> None:
    if generation.close():
        state.metrics.disconnects.inc()


def _request_id(request: Request) -> str:
    given = request.headers.get("x-request-id", "")
    usable = given.isascii() and given.isprintable() and 0 < len(given) <= MAX_REQUEST_ID_CHARS
    return given if usable else uuid.uuid4().hex
