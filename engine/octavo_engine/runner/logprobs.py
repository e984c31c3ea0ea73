"""Log probabilities of chosen tokens with their most likely alternatives."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from octavo_engine.messages import PositionLogprobs, TokenLogprob


@dataclass(frozen=True)
class TopLogprobs:
    """For each of R positions; tensors on the device until moved."""

    chosen_ids: torch.Tensor
    """[R] int64."""
    chosen: torch.Tensor
    """[R] float32."""
    ranks: torch.Tensor
    """[R] int64; 1 is the most likely token."""
    top_ids: torch.Tensor
    """[R, K] int64, most likely first."""
    top: torch.Tensor
    """[R, K] float32."""

    def map(self, move: Callable[[torch.Tensor], torch.Tensor]) -> "TopLogprobs":
        """The same with every tensor moved."""
        fields = (self.chosen_ids, self.chosen, self.ranks, self.top_ids, self.top)
        return TopLogprobs(*map(move, fields))

    def position(self, idx: int, num_alternatives: int) -> PositionLogprobs:
        chosen = TokenLogprob(
            token_id=int(self.chosen_ids[idx]),
            logprob=float(self.chosen[idx]),
            rank=int(self.ranks[idx]),
        )
        ids = self.top_ids[idx, :num_alternatives].tolist()
        values = self.top[idx, :num_alternatives].tolist()
        top = [
            TokenLogprob(token_id=token_id, logprob=value, rank=rank)
            for rank, (token_id, value) in enumerate(zip(ids, values, strict=True), start=1)
        ]
        return PositionLogprobs(chosen=chosen, top=top)


def top_logprobs(
    logits: torch.Tensor, chosen_ids: torch.Tensor, num_alternatives: int
) -> TopLogprobs:
    """logits[R, vocab_size] float32, chosen_ids[R] -> logprobs of these and of the K likeliest ids.

    Selects first and normalises only what was selected: no [R, vocab_size] of logprobs is made.
    """
    norm = logits.logsumexp(dim=-1, keepdim=True)
    chosen = logits.gather(-1, chosen_ids.unsqueeze(-1))
    ranks = (logits > chosen).sum(dim=-1) + 1
    top, top_ids = logits.topk(min(num_alternatives, logits.shape[-1]), dim=-1)
    return TopLogprobs(chosen_ids, (chosen - norm).squeeze(-1), ranks, top_ids, top - norm)
