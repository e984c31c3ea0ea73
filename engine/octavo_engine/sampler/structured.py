"""Rows whose text follows a grammar: what each may not draw next, kept in step with its tokens.

A row's matcher reads the tokens that the row's table holds when the row samples. So a step that was
scheduled before its predecessor's tokens were known is masked all the same, and a row that comes
back after a preemption walks through its tokens again. Knows no scheduler.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from octavo_engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler, Matcher


_ALL = -1
"""A word of a mask in which every bit is set."""


@dataclass(frozen=True)
class GrammarWork:
    row: int
    output: list[int]
    """What the row has generated and its matcher has not taken yet."""


class StructuredRows:
    def __init__(self, compiler: "GrammarCompiler | None") -> None:
        self._compiler = compiler
        self._matchers: dict[int, Matcher] = {}
        self._failures: dict[int, str] = {}

    def admit(self, row: int, params: SamplingParams) -> bool:
        """Whether the row follows a grammar. Raises ValueError for one that does not compile."""
        self.release(row)
        if params.grammar is None:
            return False
        if self._compiler is None:
            raise ValueError("this engine has no tokenizer, which structured output needs")
        self._matchers[row] = self._compiler.matcher(params.grammar)
        return True

    def release(self, row: int) -> None:
        self._matchers.pop(row, None)
        self._failures.pop(row, None)

    def __contains__(self, row: int) -> bool:
        return row in self._matchers

    def num_consumed(self, row: int) -> int:
        return self._matchers[row].num_consumed

    def allowed(self, work: Sequence[GrammarWork], vocab_size: int) -> torch.Tensor:
        """[work, ceil(vocab_size / 32)] int32 on the CPU: a bit for each token id, lowest first,
        set where the row may draw it. A row that has left its grammar, or whose step is too
        complex, is noted as failed; it may draw anything, as may a row that has ended."""
        for item in work:
            self._advance(item)
        masks = np.full((len(work), -(-vocab_size // 32)), _ALL, dtype=np.int32)
        alive = [idx for idx, item in enumerate(work) if self._is_bound(item.row)]
        if alive:
            matchers = [self._matchers[work[idx].row] for idx in alive]
            masks[alive] = _filled(matchers, masks.shape[1])
            for idx, matcher in zip(alive, matchers, strict=True):
                error = matcher.error()
                if error is not None:
                    self._failures[work[idx].row] = f"structured output: {error}"
                    masks[idx] = _ALL
        return torch.from_numpy(masks)

    def take_failures(self) -> dict[int, str]:
        """Rows that failed since the last call, with the reason."""
        failures, self._failures = self._failures, {}
        for row in failures:
            self._matchers.pop(row, None)
        return failures

    def _advance(self, item: GrammarWork) -> None:
        try:
            self._matchers[item.row].advance(item.output)
        except ValueError as error:
            self._failures[item.row] = f"structured output: {error}"

    def _is_bound(self, row: int) -> bool:
        return row not in self._failures and not self._matchers[row].has_ended


def _filled(matchers: "list[Matcher]", num_words: int) -> NDArray[np.int32]:
    """A model's vocabulary may be wider than its tokenizer's: nothing stands for those ids."""
    from octavo_engine.structured.compiler import fill_masks

    masks = fill_masks(matchers)[:, :num_words]
    return np.pad(masks, ((0, 0), (0, num_words - masks.shape[1])))
