"""Draws the next token of every row that asks for one, and the logprobs that come with it.

Holds the prepared adjustments of the rows in the request table. The draw depends on nothing but
logits, parameters, seed and position: not on the batch, not on an earlier draw.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog
import torch

import octavo_kernels
from octavo_engine.messages import REQUEST_FAILED
from octavo_engine.runner.logprobs import TopLogprobs, top_logprobs
from octavo_engine.runner.request_table import RowInfo, RowTable
from octavo_engine.sampler.adjustments import Adjustments, prepare
from octavo_engine.sampler.structured import GrammarWork, StructuredRows
from octavo_engine.sampling_params import SamplingParams
from octavo_kernels import LogitChanges, SamplingTensors

log = structlog.get_logger(__name__)

_INT32_MAX = 2**31 - 1
SMALLEST_TEMPERATURE = 1e-5
"""Below it greedy: the logits that it divides must stay numbers that float32 tells apart."""

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler


@dataclass(frozen=True)
class SampleWork:
    row: int
    """In the request table."""
    info: RowInfo
    position: int
    """Of the token to sample; as many tokens are known before it."""


@dataclass(frozen=True)
class SampledRow:
    """Results still on the device, for all rows of a step."""

    token_ids: torch.Tensor
    """[S] int64."""
    logprobs: TopLogprobs | None
    """None when no row wants any."""


class Sampler:
    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        compiler: "GrammarCompiler | None" = None,
    ) -> None:
        """compiler: for structured output; without it such a row is refused."""
        self._vocab_size = vocab_size
        self._device = device
        self._adjustments: dict[int, Adjustments] = {}
        self._structured = StructuredRows(compiler)
        self._failures: dict[int, str] = {}

    def admit(self, row: int, params: SamplingParams) -> bool:
        """Whether the row's logits are adjusted before it samples.

        Raises ValueError for an id outside the vocabulary and for a grammar that does not compile;
        the row then samples unadjusted.
        """
        self.release(row)
        try:
            is_structured = self._structured.admit(row, params)
            adjustments = prepare(params, self._vocab_size, self._device)
        except ValueError:
            raise
        except Exception:
            self._fail(row)
            return False
        if adjustments is not None:
            self._adjustments[row] = adjustments
        return is_structured or adjustments is not None

    def release(self, row: int) -> None:
        self._adjustments.pop(row, None)
        self._structured.release(row)
        self._failures.pop(row, None)

    def _fail(self, row: int) -> None:
        """Of a defect of ours, in an exception handler: it ends this row alone."""
        log.exception("a row cannot be sampled", row=row)
        self._failures[row] = REQUEST_FAILED

    def take_failures(self) -> dict[int, str]:
        """Rows that could not sample as asked since the last call, with the reason."""
        failures, self._failures = self._failures, {}
        return self._structured.take_failures() | failures

    def takes_largest(self, work: list[SampleWork]) -> bool:
        """Whether nothing but the largest logit of each row matters."""
        return all(
            is_greedy(item.info.params)
            and item.info.params.logprobs is None
            and item.row not in self._adjustments
            and item.row not in self._structured
            for item in work
        )

    def sample(self, logits: torch.Tensor, work: list[SampleWork], table: RowTable) -> SampledRow:
        """logits[S, vocab_size], changed in place; float32, or any dtype where `takes_largest`.
        work[S]."""
        wants_logprobs = any(item.info.params.logprobs is not None for item in work)
        changes = self._changes(work, table)
        raw = logits.clone() if wants_logprobs and changes is not None else logits
        token_ids = octavo_kernels.sample(logits, self._tensors(work), changes)
        if not wants_logprobs:
            return SampledRow(token_ids, None)
        params = [item.info.params for item in work]
        return SampledRow(token_ids, self._logprobs(raw, logits, params, token_ids))

    def _changes(self, work: list[SampleWork], table: RowTable) -> list[LogitChanges | None] | None:
        """Of each row; None when no row changes its logits."""
        changes = [self._own_changes(item, table) for item in work]
        structured = [idx for idx, item in enumerate(work) if item.row in self._structured]
        if structured:
            grammar_work = self._grammar_work(structured, work, table)
            masks = self._structured.allowed(grammar_work, self._vocab_size)
            masks = masks.to(self._device, non_blocking=True)
            for idx, mask in zip(structured, masks, strict=True):
                own = changes[idx] or _no_changes(work[idx], table)
                changes[idx] = self._within(mask, own)
        return changes if any(wanted is not None for wanted in changes) else None

    def _own_changes(self, item: SampleWork, table: RowTable) -> LogitChanges | None:
        """Without what a grammar forbids."""
        adjustments = self._adjustments.get(item.row)
        if adjustments is None:
            return None
        try:
            return adjustments.after(_history(item, table), item.info.num_prompt_tokens)
        except Exception:
            self._fail(item.row)
            return None

    def _within(self, mask: torch.Tensor, own: LogitChanges) -> LogitChanges:
        """A row's own changes and its grammar's mask. Where they leave no token the grammar wins:
        the others then do not count."""
        both = replace(own, allowed=mask if own.allowed is None else own.allowed & mask)
        if not own.has_limits or octavo_kernels.leaves_a_token(both, self._vocab_size):
            return both
        return LogitChanges(
            history=own.history, num_prompt_tokens=own.num_prompt_tokens, allowed=mask
        )

    def _grammar_work(
        self, structured: list[int], work: list[SampleWork], table: RowTable
    ) -> list[GrammarWork]:
        """Reads the tokens that the matchers have not seen; on a GPU this waits for the step that
        sampled them."""
        spans = []
        for idx in structured:
            item = work[idx]
            start = item.info.num_prompt_tokens + self._structured.num_consumed(item.row)
            spans.append((item.row, range(start, item.position)))
        rows = [row for row, span in spans for _ in span]
        positions = [position for _, span in spans for position in span]
        tokens = iter(table.token_ids[rows, positions].tolist() if rows else [])
        return [GrammarWork(row, [next(tokens) for _ in span]) for row, span in spans]

    def _tensors(self, work: list[SampleWork]) -> SamplingTensors:
        params = [item.info.params for item in work]

        def floats(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, dtype=torch.float32).to(self._device, non_blocking=True)

        def ints(values: list[int], dtype: torch.dtype) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype).to(self._device, non_blocking=True)

        return SamplingTensors(
            temperature=floats([drawn_temperature(p) for p in params]),
            top_k=ints([min(p.top_k, _INT32_MAX) for p in params], torch.int32),
            top_p=floats([p.top_p for p in params]),
            min_p=floats([p.min_p for p in params]),
            seeds=ints([signed_64(item.info.seed) for item in work], torch.int64),
            positions=ints([item.position for item in work], torch.int64),
            all_greedy=all(is_greedy(p) for p in params),
            any_filter=any(not is_greedy(p) and has_filter(p) for p in params),
        )

    def _logprobs(
        self,
        raw: torch.Tensor,
        processed: torch.Tensor,
        params: list[SamplingParams],
        token_ids: torch.Tensor,
    ) -> TopLogprobs:
        if any(p.logprobs_mode == "processed" for p in params):
            temperatures = [1.0 if is_greedy(p) else p.temperature for p in params]
            scale = torch.tensor(temperatures, device=self._device).unsqueeze(-1)
            is_processed = torch.tensor(
                [p.logprobs_mode == "processed" for p in params], device=self._device
            )
            raw = torch.where(is_processed.unsqueeze(-1), processed / scale, raw)
        return top_logprobs(raw, token_ids, max(p.logprobs or 0 for p in params))


def _history(item: SampleWork, table: RowTable) -> torch.Tensor:
    """[n] int32: the tokens before the one to sample."""
    return table.token_ids[item.row, : item.position]


def _no_changes(item: SampleWork, table: RowTable) -> LogitChanges:
    return LogitChanges(
        history=_history(item, table), num_prompt_tokens=item.info.num_prompt_tokens
    )


def is_greedy(params: SamplingParams) -> bool:
    return params.temperature < SMALLEST_TEMPERATURE or params.top_k == 1


def drawn_temperature(params: SamplingParams) -> float:
    """What the sampling kernel is given; 0 is greedy."""
    return 0.0 if is_greedy(params) else params.temperature


def has_filter(params: SamplingParams) -> bool:
    return params.top_p < 1.0 or params.top_k > 0 or params.min_p > 0.0


def signed_64(seed: int) -> int:
    """Any integer as the int64 with the same low 64 bits."""
    return (seed + 2**63) % 2**64 - 2**63
