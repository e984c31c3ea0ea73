"""`EchoEngine`: an `EngineClient` that answers from a script, token by token. No model."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import cycle

from tests.engine.byte_tokenizer import VOCAB_SIZE, ids_of

from octavo_engine.errors import EngineDead, QueueFull
from octavo_engine.messages import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    PositionLogprobs,
    RequestDelta,
    TokenLogprob,
)

Script = Callable[[EngineRequest, int], list[int]]
"""Token ids for a request and the index of its sequence."""


def always(text: str) -> Script:
    return lambda request, index: ids_of(text)


class EchoEngine:
    """Sends the script's tokens step by step; waits at `gate` before each step."""

    def __init__(
        self,
        script: Script,
        *,
        tokens_per_step: int | Sequence[int] = 1,
        max_model_len: int = 200,
    ) -> None:
        """tokens_per_step: of each step, or of the first, the second, and so on, in turn."""
        self._script = script
        self._tokens_per_step = (
            [tokens_per_step] if isinstance(tokens_per_step, int) else tokens_per_step
        )
        self.gate = asyncio.Event()
        self.gate.set()
        self.requests: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.finished: list[tuple[str, int, str]] = []
        self.death: str | None = None
        self.is_queue_full = False
        self.failure: str | None = None
        self.num_running = 0
        self.last_step_age_s = 0.0
        self.num_generated = 0
        self.info = EngineInfo(
            vocab_size=VOCAB_SIZE,
            max_model_len=max_model_len,
            block_size=16,
            num_blocks=64,
            max_num_seqs=8,
            dtype="float32",
            device="cpu",
        )

    def submit(self, request: EngineRequest) -> "EchoStream":
        if self.death is not None:
            raise EngineDead(self.death)
        if self.is_queue_full:
            raise QueueFull("5 requests are waiting already")
        request.params.verify(self.info.vocab_size)
        self.requests.append(request)
        return EchoStream(self._run(request))

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        self.finished.append((request_id, index, stop_reason))

    def stats(self) -> EngineStats:
        return EngineStats(
            num_running=self.num_running,
            num_waiting=0,
            kv_blocks_total=64,
            kv_blocks_used=16,
            kv_blocks_cached=3,
            prompt_tokens_total=sum(len(r.prompt_token_ids) for r in self.requests),
            generation_tokens_total=self.num_generated,
            prefix_queries_tokens_total=10,
            prefix_hits_tokens_total=4,
            preemptions_total=1,
            finished_total={"stop": 2, "length": 1},
            steps_total=7,
            last_step_age_s=self.last_step_age_s,
            has_work=self.num_running > 0,
        )

    async def close(self) -> None:
        return None

    def abandon(self) -> None:
        return None

    async def _run(self, request: EngineRequest) -> AsyncIterator[list[RequestDelta]]:
        rows = [self._row(request, index) for index in range(request.params.n)]
        num_steps = max(len(row) for row in rows)
        self.num_running += 1
        try:
            for step in range(num_steps - 1):
                await self._pause(request)
                yield [row[step] for row in rows if step < len(row)]
            await self._pause(request)
        except _Aborted:
            return
        finally:
            self.num_running -= 1
        yield [row[num_steps - 1] for row in rows if num_steps == len(row)]

    async def _pause(self, request: EngineRequest) -> None:
        while not self.gate.is_set() and request.request_id not in self.aborted:
            await asyncio.sleep(0.005)
        await asyncio.sleep(0)
        if request.request_id in self.aborted:
            raise _Aborted

    def _row(self, request: EngineRequest, index: int) -> list[RequestDelta]:
        """The deltas of one sequence."""
        params = request.params
        ids = self._script(request, index)
        assert params.max_tokens is not None
        ids, reason, stop_reason = _cut(ids, request)
        self.num_generated += len(ids)
        groups = list(self._cut_in_steps(ids)) or [[]]
        logprobs = None if params.logprobs is None else params.logprobs
        return [
            RequestDelta(
                request_id=request.request_id,
                index=index,
                token_ids=group,
                logprobs=None if logprobs is None else [fake_logprobs(i, logprobs) for i in group],
                prompt_logprobs=self._prompt_logprobs(request) if i + index == 0 else None,
                num_cached_tokens=3,
                finish_reason=(self._reason(reason)) if i == len(groups) - 1 else None,
                stop_reason=stop_reason if i == len(groups) - 1 else None,
                error=self.failure,
            )
            for i, group in enumerate(groups)
        ]

    def _cut_in_steps(self, ids: list[int]) -> Iterator[list[int]]:
        sizes = cycle(self._tokens_per_step)
        while ids:
            size = next(sizes)
            yield ids[:size]
            ids = ids[size:]

    def _reason(self, reason: FinishReason) -> FinishReason:
        return "error" if self.failure is not None else reason

    def _prompt_logprobs(self, request: EngineRequest) -> list[PositionLogprobs | None] | None:
        k = request.params.prompt_logprobs
        if k is None:
            return None
        return [None, *(fake_logprobs(i, k) for i in request.prompt_token_ids[1:])]


class _Aborted(Exception):
    """The request was aborted: its stream ends without a word, as a real one may."""


class EchoStream:
    def __init__(self, steps: AsyncIterator[list[RequestDelta]]) -> None:
        self._steps = steps

    def __aiter__(self) -> "EchoStream":
        return self

    async def __anext__(self) -> list[RequestDelta]:
        return await anext(self._steps)


def _cut(ids: list[int], request: EngineRequest) -> tuple[list[int], FinishReason, int | None]:
    """Ends at an end or stop id, else at max_tokens, else as if the model had ended by itself."""
    params = request.params
    for i, token_id in enumerate(ids):
        if i + 1 > (params.max_tokens or 0):
            return ids[:i], "length", None
        if token_id in params.stop_token_ids:
            return ids[: i + 1], "stop", token_id
        if token_id in params.eos_token_ids and not params.ignore_eos:
            return ids[: i + 1], "stop", None
    return ids, "stop", None


def fake_logprobs(token_id: int, num_top: int) -> PositionLogprobs:
    """The chosen token is the second most likely; its neighbour is the first."""
    other = TokenLogprob((token_id + 1) % 256, -0.25, 1)
    chosen = TokenLogprob(token_id, -0.5, 2)
    return PositionLogprobs(chosen, [other, chosen][:num_top])
