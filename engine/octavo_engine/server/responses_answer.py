"""Answers of /v1/responses, whole and as a stream of events."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from msgspec import UNSET

from octavo_engine.messages import EngineRequest, FinishReason
from octavo_engine.server.answers import raise_failure
from octavo_engine.server.errors import ApiError
from octavo_engine.server.generation import ChoiceDelta, Generation
from octavo_engine.server.logprobs import chat_logprobs
from octavo_engine.server.responses_fields import ResponsesRequest
from octavo_engine.server.responses_items import Event, ItemBuilder
from octavo_engine.server.responses_types import (
    IncompleteDetails,
    ItemStatus,
    ResponseFailure,
    ResponseObject,
    ResponseStatus,
    ResponsesUsage,
)
from octavo_engine.text.tokenizer import Tokenizer

_STATUSES: dict[FinishReason, tuple[ResponseStatus, ItemStatus]] = {
    "stop": ("completed", "completed"),
    "length": ("incomplete", "incomplete"),
    "abort": ("cancelled", "incomplete"),
    "error": ("failed", "incomplete"),
}


class ResponsesAnswer:
    def __init__(
        self,
        fields: ResponsesRequest,
        requests: Sequence[EngineRequest],
        tokenizer: Tokenizer,
        answer_id: str,
    ) -> None:
        self._tokenizer = tokenizer
        self._builder = ItemBuilder()
        self._response = _response(fields, requests[0], answer_id)
        self._num_events = 0

    async def gather(self, generation: Generation) -> msgspec.Struct:
        """Raises `ApiError` 500 when the engine failed this request."""
        async with aclosing(generation.deltas()) as batches:
            async for batch in batches:
                for item in batch:
                    self._add(item)
        self._response.usage = ResponsesUsage.of(generation.usage())
        return self._response

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        yield self._encode(self._state_event("response.created"))
        yield self._encode(self._state_event("response.in_progress"))
        try:
            async with aclosing(generation.deltas()) as batches:
                async for batch in batches:
                    events = [event for item in batch for event in self._add(item)]
                    if events:
                        yield b"".join(map(self._encode, events))
        except ApiError as error:
            # The status line is out; the last event tells of the error.
            self._response.status = "failed"
            self._response.error = ResponseFailure("server_error", str(error))
        self._response.usage = ResponsesUsage.of(generation.usage())
        name = self._response.status
        ending = name if name in ("completed", "failed") else "incomplete"
        yield self._encode(self._state_event(f"response.{ending}"))

    def _add(self, item: ChoiceDelta) -> list[Event]:
        raise_failure(item)
        delta = item.delta
        known = chat_logprobs(delta.tokens, self._tokenizer)
        events = self._builder.add(delta.message, known.content if known is not None else [])
        if delta.finish_reason is not None:
            self._response.status, item_status = _STATUSES[delta.finish_reason]
            if delta.finish_reason == "length":
                self._response.incomplete_details = IncompleteDetails("max_output_tokens")
            call_status: ItemStatus = "incomplete" if delta.has_open_call else item_status
            events += self._builder.finish(item_status, call_status)
        self._response.output = self._builder.items
        return events

    def _state_event(self, name: str) -> Event:
        return {"type": name, "response": self._response}

    def _encode(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._num_events}
        self._num_events += 1
        return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), msgspec.json.encode(numbered))


def _response(fields: ResponsesRequest, request: EngineRequest, answer_id: str) -> ResponseObject:
    """As it stands before the first token, the request's settings resolved."""
    text: dict[str, Any] = {"format": {"type": "text"}}
    if fields.text is not None:
        text |= fields.text.model_dump(exclude_none=True, by_alias=True)
    reasoning = {"effort": None, "summary": None}
    if fields.reasoning is not None:
        reasoning |= fields.reasoning.model_dump(exclude_none=True)
    choice = fields.tool_choice or "auto"
    return ResponseObject(
        id=answer_id,
        created_at=int(time.time()),
        instructions=fields.instructions,
        max_output_tokens=fields.max_output_tokens,
        model=fields.model,
        parallel_tool_calls=fields.parallel_tool_calls is not False,
        reasoning=reasoning,
        temperature=request.params.temperature,
        text=text,
        tool_choice=choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
        tools=[{"strict": None, **tool.model_dump()} for tool in fields.tools or []],
        top_p=request.params.top_p,
        user=fields.user,
        metadata=fields.metadata or {},
        top_logprobs=UNSET if fields.top_logprobs is None else fields.top_logprobs,
    )
