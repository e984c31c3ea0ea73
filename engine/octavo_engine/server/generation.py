"""Runs prompts on the engine and turns their deltas into text; aborts what its reader abandons."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing

import msgspec
import structlog
from msgspec import UNSET

from octavo_engine.errors import OctavoError
from octavo_engine.messages import EngineRequest, PositionLogprobs, RequestDelta, RequestStream
from octavo_engine.server.chat_plan import ChatPlan
from octavo_engine.server.coalesce import coalesce
from octavo_engine.server.errors import ApiError, from_engine
from octavo_engine.server.request_times import RequestTimes
from octavo_engine.server.response_types import CompletionTokensDetails, PromptTokensDetails, Usage
from octavo_engine.server.state import Loaded, ServerState
from octavo_engine.text.sequence_text import SequenceText, TextDelta

log = structlog.get_logger(__name__)


class ChoiceDelta(msgspec.Struct, frozen=True):
    """New text of one choice of the answer."""

    index: int
    """Counts over all prompts: prompt 0's sequences first."""
    delta: TextDelta
    prompt_logprobs: list[PositionLogprobs | None] | None = None


class Generation:
    """The prompts of one HTTP request as they run. Submitted when made; read once; then closed."""

    def __init__(
        self,
        state: ServerState,
        loaded: Loaded,
        requests: Sequence[EngineRequest],
        plan: ChatPlan | None = None,
    ) -> None:
        """plan: how the text is read, where it is a chat's.

        Raises `ApiError` when the engine refuses one of the prompts; then none is left there."""
        self._state = state
        self._loaded = loaded
        self._n = requests[0].params.n
        self._runs: list[_PromptRun] = []
        try:
            for request in requests:
                stream = loaded.engine.submit(request)
                self._runs.append(_PromptRun(state, loaded, request, stream, plan))
                state.note_running(request.request_id)
        except OctavoError as error:
            self.close()
            raise from_engine(error) from error

    async def deltas(self) -> AsyncGenerator[list[ChoiceDelta], None]:
        """Deltas of all choices as they come, until every choice has its finish reason.

        Every sequence that the engine ends or the server cuts at a stop string comes to an end.
        Raises `ApiError` 500 for text that cannot be made, which a stream can tell its reader.
        """
        async with aclosing(self._merged()) as merged:
            try:
                async for prompt_idx, deltas in merged:
                    first = prompt_idx * self._n
                    yield [msgspec.structs.replace(d, index=first + d.index) for d in deltas]
            except Exception as error:
                log.exception("a request failed", request_id=self._runs[0].request.request_id)
                raise ApiError(500, "internal error") from error

    def usage(self) -> Usage:
        """Tokens so far."""
        num_prompt = sum(len(run.request.prompt_token_ids) for run in self._runs)
        num_output = sum(run.num_output_tokens for run in self._runs)
        num_cached = sum(run.num_cached_tokens for run in self._runs)
        num_reasoning = sum(run.num_reasoning_tokens for run in self._runs)
        return Usage(
            num_prompt,
            num_output,
            num_prompt + num_output,
            PromptTokensDetails(num_cached),
            CompletionTokensDetails(num_reasoning) if num_reasoning else UNSET,
        )

    def close(self) -> bool:
        """Aborts what still runs, since nobody will read it; whether there was anything."""
        unfinished = [run for run in self._runs if not run.finished]
        for run in unfinished:
            self._loaded.engine.abort(run.request.request_id)
        for run in self._runs:
            self._state.forget_running(run.request.request_id)
        return bool(unfinished)

    async def _merged(self) -> AsyncGenerator[tuple[int, list[ChoiceDelta]], None]:
        if len(self._runs) == 1:
            async for deltas in self._runs[0].deltas():
                yield 0, deltas
            return
        queue: asyncio.Queue[tuple[int, list[ChoiceDelta]]] = asyncio.Queue()

        async def pump(prompt_idx: int) -> None:
            async for deltas in self._runs[prompt_idx].deltas():
                queue.put_nowait((prompt_idx, deltas))

        pumps = [asyncio.ensure_future(pump(i)) for i in range(len(self._runs))]
        done = asyncio.gather(*pumps)
        done.add_done_callback(lambda _: queue.put_nowait((-1, [])))
        try:
            while (item := await queue.get())[0] >= 0:
                yield item
            done.result()
        finally:
            done.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)


class _PromptRun:
    """One engine request: its sequences as text, its times as metrics."""

    def __init__(
        self,
        state: ServerState,
        loaded: Loaded,
        request: EngineRequest,
        stream: RequestStream,
        plan: ChatPlan | None,
    ) -> None:
        self.request = request
        self.num_cached_tokens = 0
        self._times = RequestTimes(state.metrics, request)
        self._engine = loaded.engine
        self._stream = stream
        self._sequences = [
            SequenceText(
                loaded.tokenizer,
                request.params,
                request.prompt_token_ids,
                reader=None if plan is None else plan.new_reader(),
                kept_ids=frozenset() if plan is None else plan.kept_ids,
            )
            for _ in range(request.params.n)
        ]

    @property
    def num_output_tokens(self) -> int:
        return sum(sequence.num_tokens for sequence in self._sequences)

    @property
    def num_reasoning_tokens(self) -> int:
        return sum(sequence.num_reasoning_tokens for sequence in self._sequences)

    @property
    def finished(self) -> bool:
        return all(sequence.finished for sequence in self._sequences)

    async def deltas(self) -> AsyncIterator[list[ChoiceDelta]]:
        while not self.finished:
            try:
                batch = coalesce(await anext(self._stream))
            except StopAsyncIteration:
                batch = self._aborted()
            out = [
                self._take(delta) for delta in batch if not self._sequences[delta.index].finished
            ]
            if out:
                yield out
        self._times.finish(time.monotonic())

    def _take(self, delta: RequestDelta) -> ChoiceDelta:
        self._times.note(delta, time.monotonic())
        self.num_cached_tokens = max(self.num_cached_tokens, delta.num_cached_tokens)
        text = self._sequences[delta.index].push(delta)
        if text.is_cut:
            reason = str(text.stop_reason or "tool_calls")
            self._engine.finish(self.request.request_id, delta.index, reason)
        return ChoiceDelta(delta.index, text, delta.prompt_logprobs)

    def _aborted(self) -> list[RequestDelta]:
        """A stream that ends early was aborted: say so for every sequence that still runs."""
        request_id = self.request.request_id
        return [
            RequestDelta(request_id=request_id, index=i, token_ids=[], finish_reason="abort")
            for i in range(len(self._sequences))
        ]
