"""What the runner asks of a model. The decoder of the table is one; a fallback may be another."""

from typing import Protocol

import torch

from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.rope import RopeConfig


class Model(Protocol):
    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """The different rotations of its layers; `StepContext.ropes` has one entry for each."""
        ...

    def hidden_states(
        self, token_ids: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        """token_ids[T] -> [R, hidden_size] of the tokens in `context.wanted`, in its order; writes
        keys and values of all T tokens to the pages."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """hidden[R, hidden_size] -> [R, vocab_size] float32."""
        ...

    def narrow_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """As `logits`, in the dtype of hidden."""
        ...
