"""A step's results on their way from the device to the caller, as plain data at the end."""

from concurrent.futures import Future
from dataclasses import dataclass, field
from time import perf_counter

import torch

from octavo_engine.batch import PromptLogprobs, SampledToken, StepResult
from octavo_engine.runner.logprobs import TopLogprobs
from octavo_engine.sampler import SampledRow


@dataclass(frozen=True)
class HostCopy:
    """Sampled ids and logprobs in host memory once `ready` has passed; at once on a CPU."""

    token_ids: torch.Tensor
    logprobs: TopLogprobs | None
    ready: torch.cuda.Event | None

    @classmethod
    def start(cls, sampled: SampledRow, device: torch.device) -> "HostCopy":
        """Copies behind the work launched so far, so that later steps do not delay it."""
        if device.type == "cpu":
            return cls(sampled.token_ids, sampled.logprobs, None)
        logprobs = sampled.logprobs
        copy = cls(
            _pinned(sampled.token_ids),
            None if logprobs is None else logprobs.map(_pinned),
            torch.cuda.Event(),
        )
        assert copy.ready is not None
        copy.ready.record()
        return copy

    def wait(self) -> None:
        if self.ready is not None:
            self.ready.synchronize()


def _pinned(source: torch.Tensor) -> torch.Tensor:
    target = torch.empty(source.shape, dtype=source.dtype, pin_memory=True)
    return target.copy_(source, non_blocking=True)


@dataclass(frozen=True, kw_only=True)
class RawStep:
    """A step as the worker thread leaves it."""

    step_id: int
    started_s: float
    failed_rows: dict[int, str]
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    """That sampled, in the order of the sampled ids."""
    num_alternatives: list[int | None] = field(default_factory=list)
    """Of each of them; None: no logprobs."""
    sampled: HostCopy | None = None
    """None when no row sampled."""
    finished_s: float | None = None
    """When the work was done, where the worker thread saw that; None: known when collected."""

    def collect(self) -> StepResult:
        """Waits for the device."""
        return StepResult(
            step_id=self.step_id,
            sampled=[] if self.sampled is None else self._sampled(self.sampled),
            prompt_logprobs=self.prompt_logprobs,
            failed_rows=self.failed_rows,
            duration_s=(self.finished_s or perf_counter()) - self.started_s,
        )

    def _sampled(self, copy: HostCopy) -> list[SampledToken]:
        copy.wait()
        tokens = []
        for idx, token_id in enumerate(copy.token_ids.tolist()):
            row, num = self.rows[idx], self.num_alternatives[idx]
            if row in self.failed_rows:
                continue
            logprobs = None
            if copy.logprobs is not None and num is not None:
                logprobs = copy.logprobs.position(idx, num)
            tokens.append(SampledToken(row=row, token_id=token_id, logprobs=logprobs))
        return tokens


class LaunchedStep:
    """The handle that the engine waits on."""

    def __init__(self, future: "Future[RawStep]") -> None:
        self._future = future

    def result(self) -> StepResult:
        return self._future.result().collect()
