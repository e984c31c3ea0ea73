"""A launched step as the engine holds it, and its result as plain data once it has ended."""

from dataclasses import dataclass, field

from octavo_engine.batch import PromptLogprobs, SampledToken, StepResult
from octavo_engine.cuda.id_ring import LateIds
from octavo_engine.cuda.transfer import Mark
from octavo_engine.runner.logprobs import TopLogprobs


@dataclass(frozen=True, kw_only=True)
class StepTokens:
    """What a step samples, on its way to the host."""

    rows: list[int]
    """In the order of the ids."""
    ids: LateIds
    logprobs: TopLogprobs | None = None
    num_alternatives: list[int | None] = field(default_factory=list)
    """Of each row when there are logprobs; None: this row wants none."""


@dataclass(frozen=True, kw_only=True)
class LaunchedCudaStep:
    step_id: int
    started: Mark
    ended: Mark
    failed_rows: dict[int, str]
    prompt_logprobs: list[PromptLogprobs]
    tokens: StepTokens | None
    num_padded_rows: int = 0
    is_graph: bool = False

    def result(self) -> StepResult:
        """Waits for the step."""
        self.ended.wait()
        return StepResult(
            step_id=self.step_id,
            sampled=[] if self.tokens is None else self._sampled(self.tokens),
            prompt_logprobs=self.prompt_logprobs,
            failed_rows=self.failed_rows,
            duration_s=self.ended.seconds_since(self.started),
            num_padded_rows=self.num_padded_rows,
            is_graph=self.is_graph,
        )

    def _sampled(self, tokens: StepTokens) -> list[SampledToken]:
        ids = tokens.ids.read()
        if tokens.logprobs is None and not self.failed_rows:
            return [
                SampledToken(row=row, token_id=id_)
                for row, id_ in zip(tokens.rows, ids, strict=True)
            ]
        sampled = []
        for idx, (row, id_) in enumerate(zip(tokens.rows, ids, strict=True)):
            if row in self.failed_rows:
                continue
            logprobs = None
            if tokens.logprobs is not None and (num := tokens.num_alternatives[idx]) is not None:
                logprobs = tokens.logprobs.position(idx, num)
            sampled.append(SampledToken(row=row, token_id=id_, logprobs=logprobs))
        return sampled
