"""Drives an `EngineCore` over the fake runner without threads, and says what should come out."""

from collections.abc import Iterable

from tests.engine.fake_runner import FakeRunner, next_token

from octavo_engine.config import SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest, FinishReason, RequestDelta
from octavo_engine.sampling_params import SamplingParams, resolve_seed
from octavo_engine.scheduling.admission import verify_request
from octavo_engine.scheduling.request import end_after_token


class Driver:
    """A core, its fake runner and everything the streams have got so far."""

    def __init__(
        self,
        runner: FakeRunner,
        settings: SchedulerSettings | None = None,
        *,
        prefix_caching: bool = True,
    ) -> None:
        self.runner = runner
        self.now_s = 100.0
        self.core = EngineCore(
            runner,
            settings or SchedulerSettings(),
            prefix_caching=prefix_caching,
            clock=lambda: self.now_s,
            new_seed=lambda: 7,
        )
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.deltas: dict[str, list[RequestDelta]] = {}
        self.ends: dict[tuple[str, int], RequestDelta] = {}

    def submit(
        self,
        request_id: str,
        prompt: list[int],
        params: SamplingParams | None = None,
        *,
        priority: int = 0,
        salt: str | None = None,
    ) -> EngineRequest:
        request = EngineRequest(
            request_id=request_id,
            prompt_token_ids=prompt,
            params=params or greedy(),
            priority=priority,
            cache_salt=salt,
            arrival_time_s=self.now_s,
        )
        verify_request(request, self.core.door)
        self.core.submit(request)
        return request

    def step(self, count: int = 1) -> list[RequestDelta]:
        out = []
        for _ in range(count):
            if not self.core.has_work:
                break
            self.now_s += 0.01
            out += self._take(self.core.step())
        return out

    def run(self, limit: int = 20_000) -> None:
        """Steps until nothing is left, then sees that every page is back."""
        for _ in range(limit):
            if not self.core.has_work:
                break
            self.step()
        else:
            raise AssertionError(f"still at work after {limit} steps")
        self.settle()

    def settle(self) -> None:
        self._take(self.core.take_deltas())
        self.core.check_integrity()
        assert self.core.stats().kv_blocks_used == 0

    def reason(self, request_id: str, index: int = 0) -> FinishReason | None:
        return self.ends[request_id, index].finish_reason

    def _take(self, deltas: Iterable[RequestDelta]) -> list[RequestDelta]:
        for delta in deltas:
            key = delta.request_id, delta.index
            assert key not in self.ends, f"{key} goes on after its end: {delta}"
            self.tokens.setdefault(key, []).extend(delta.token_ids)
            self.deltas.setdefault(delta.request_id, []).append(delta)
            if delta.finish_reason is not None:
                self.ends[key] = delta
        return list(deltas)

    def check_tokens(self, request: EngineRequest) -> None:
        """Every sequence that was not cut short has exactly the tokens of the reference."""
        for index in range(request.params.n):
            key = request.request_id, index
            expected = reference(request, index, self.core.info.max_model_len)
            got = self.tokens[key]
            if self.ends[key].finish_reason in ("abort", "error"):
                assert got == expected[: len(got)], f"{key}: {got} is no prefix of {expected}"
            else:
                assert got == expected, f"{key}: {got} instead of {expected}"


def greedy(max_tokens: int = 8, **fields: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, **fields)  # type: ignore[arg-type]  # fields of several types


def prompt_of(length: int, start: int = 0) -> list[int]:
    """A prompt that no other start shares a page with."""
    return [(start * 31 + i * 7 + start) % 90 + 3 for i in range(length)]


def reference(request: EngineRequest, index: int, max_model_len: int) -> list[int]:
    """The tokens of one sequence, computed alone and without any pages."""
    params = request.params
    if params.max_tokens == 0:
        return []
    seed = resolve_seed(7 if params.seed is None else params.seed, index)
    tokens = list(request.prompt_token_ids)
    num_prompt = len(tokens)
    room = max_model_len - num_prompt
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    while True:
        tokens.append(next_token(tokens, params, seed))
        generated = len(tokens) - num_prompt
        if end_after_token(params, tokens[-1], generated, generated >= limit):
            return tokens[num_prompt:]
