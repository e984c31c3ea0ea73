"""What an endpoint makes of the deltas of a generation; one subclass for chat, one for completions.

The same deltas make the whole answer and the stream, so the joined stream equals the plain answer.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from octavo_engine.messages import ENGINE_STOPPED, EngineRequest, PositionLogprobs
from octavo_engine.parsers.message import MessageDelta
from octavo_engine.server.disconnect import DONE, sse
from octavo_engine.server.errors import ApiError
from octavo_engine.server.generation import ChoiceDelta, Generation
from octavo_engine.server.request_fields import SamplingFields
from octavo_engine.server.response_types import Usage
from octavo_engine.text.sequence_text import TextDelta, TokenPiece
from octavo_engine.text.tokenizer import Tokenizer


class WholeChoice:
    """All of one choice, gathered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.messages: list[MessageDelta] = []
        self.pieces: list[TokenPiece] = []
        self.finish_reason = ""
        self.stop_reason: int | str | None = None
        self.has_calls = False
        self.prompt_logprobs: list[PositionLogprobs | None] | None = None

    def add(self, item: ChoiceDelta) -> None:
        self.texts.append(item.delta.text)
        self.messages.append(item.delta.message)
        self.pieces.extend(item.delta.tokens)
        self.prompt_logprobs = item.prompt_logprobs or self.prompt_logprobs
        if item.delta.finish_reason is not None:
            self.finish_reason = item.delta.finish_reason
            self.stop_reason = item.delta.stop_reason
            self.has_calls = item.delta.has_calls

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Answering(Protocol):
    """The answer to one request, whole or streamed; one of the two is asked for, once."""

    async def gather(self, generation: Generation) -> msgspec.Struct: ...

    def events(self, generation: Generation) -> AsyncGenerator[bytes, None]: ...


class Answer(ABC):
    """The answer of an endpoint that speaks in choices and chunks."""

    def __init__(
        self,
        fields: SamplingFields,
        requests: Sequence[EngineRequest],
        tokenizer: Tokenizer,
        answer_id: str,
    ) -> None:
        self.fields = fields
        self.requests = requests
        self.tokenizer = tokenizer
        self.id = answer_id
        self.model = fields.model
        self.created = int(time.time())
        self.n = requests[0].params.n
        options = fields.stream_options
        self._include_usage = options is not None and options.include_usage
        self._usage_in_each = options is not None and options.continuous_usage_stats

    @abstractmethod
    def whole(self, choices: list[WholeChoice], usage: Usage) -> msgspec.Struct: ...

    @abstractmethod
    def opening_chunks(self) -> list[msgspec.Struct]:
        """Chunks before the first token."""

    @abstractmethod
    def chunk(self, item: ChoiceDelta, usage: Usage | UnsetType | None) -> msgspec.Struct: ...

    def has_news(self, delta: TextDelta) -> bool:
        """Whether a delta that ends nothing is worth a chunk."""
        return bool(delta.text or self.has_token_news(delta))

    def has_token_news(self, delta: TextDelta) -> bool:
        wants_tokens = self.requests[0].params.logprobs is not None or self.fields.return_token_ids
        return bool(delta.tokens and wants_tokens)

    @abstractmethod
    def usage_chunk(self, usage: Usage) -> msgspec.Struct: ...

    async def gather(self, generation: Generation) -> msgspec.Struct:
        """Raises `ApiError` 500 when the engine failed this request."""
        choices = [WholeChoice() for _ in range(len(self.requests) * self.n)]
        async with aclosing(generation.deltas()) as batches:
            async for batch in batches:
                for item in batch:
                    raise_failure(item)
                    choices[item.index].add(item)
        return self.whole(choices, generation.usage())

    async def events(self, generation: Generation) -> AsyncGenerator[bytes, None]:
        """The event stream: opening, deltas, finish, usage when asked for, [DONE]."""
        for chunk in self.opening_chunks():
            yield sse(msgspec.json.encode(chunk))
        try:
            async with aclosing(generation.deltas()) as batches:
                async for batch in batches:
                    chunks = b"".join(self._encode(item, generation) for item in batch)
                    if chunks:
                        yield chunks
        except ApiError as error:
            # The status line is out; the error goes into the stream and ends it.
            yield sse(msgspec.json.encode(error.body())) + DONE
            return
        if self._include_usage:
            yield sse(msgspec.json.encode(self.usage_chunk(generation.usage())))
        yield DONE

    def _encode(self, item: ChoiceDelta, generation: Generation) -> bytes:
        """Nothing for a delta that is worth no chunk."""
        raise_failure(item)
        delta = item.delta
        if not (delta.finish_reason or self.has_news(delta)):
            return b""
        usage: Usage | UnsetType | None = None if self._include_usage else UNSET
        if self._usage_in_each:
            usage = generation.usage()
        return sse(msgspec.json.encode(self.chunk(item, usage)))


def raise_failure(item: ChoiceDelta) -> None:
    if item.delta.finish_reason == "error":
        message = item.delta.error or "the engine failed to answer this request"
        if message == ENGINE_STOPPED:
            raise ApiError(503, message, code="engine_dead", retry_after_s=10)
        raise ApiError(500, message, code="engine_error")
