"""What a row changes in its logits before it draws: masks, biases and penalties.

Plain frozen data, filled by the sampler for each step. Knows no request and no grammar.
"""

from dataclasses import dataclass

import torch

ANY_TOKEN = -1
"""Stands for every id, and for none at all, in the prefix of a forbidden ending."""


@dataclass(frozen=True)
class ForbiddenEndings:
    """Tokens that may not follow certain others."""

    prefixes: torch.Tensor
    """[W, L] int32: the tokens before the last one, filled up with ANY_TOKEN on the left."""
    last_ids: torch.Tensor
    """[W] int32: may not be drawn where the output ends in the prefix."""


@dataclass(frozen=True, kw_only=True)
class LogitChanges:
    """Of one row; on the device of the logits [N], contiguous, all ids below N."""

    history: torch.Tensor
    """[n] int32: all tokens before the one to draw."""
    num_prompt_tokens: int
    """At the beginning of the history; what follows is the output."""
    allowed: torch.Tensor | None = None
    """[ceil(N / 32)] int32: a bit for each id, lowest first, set where it may be drawn."""
    forbidden_ids: torch.Tensor | None = None
    """[F] int32."""
    endings: ForbiddenEndings | None = None
    bias_ids: torch.Tensor | None = None
    """[B] int32, each id at most once; given with biases."""
    biases: torch.Tensor | None = None
    """[B] float32: added before any penalty."""
    repetition_penalty: float = 1.0
    """Divides what is above 0 and multiplies what is below, of every id in the history."""
    presence_penalty: float = 0.0
    """Taken off once from every id in the output."""
    frequency_penalty: float = 0.0
    """Taken off as often as an id stands in the output."""

    @property
    def has_limits(self) -> bool:
        """Whether some id may not be drawn."""
        limits = (self.allowed, self.forbidden_ids, self.endings)
        return any(limit is not None for limit in limits)
