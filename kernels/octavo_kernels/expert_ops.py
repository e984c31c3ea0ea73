"""Mixtures of experts: the choice of experts for each token, and their products grouped by expert.

A pair is one token with one of its experts: pair p belongs to token p // top_k. CPU tensors take
the reference, which reads counts back; the kernels read nothing back and their launches depend on
nothing but shapes, so that a step with them can be captured.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch

Gate = Literal["silu", "gelu_tanh", "clamped_swiglu"]


@dataclass(frozen=True)
class Activation:
    """gate, up -> act(gate) * up; clamped_swiglu has (up + 1) * gate * sigmoid(alpha * gate), both
    clamped by the limit first."""

    kind: Gate
    alpha: float = 1.0
    limit: float = 0.0


@dataclass(frozen=True)
class ExpertWeights:
    """Of E experts with I inner features for H; all are contiguous and in the tokens' dtype."""

    gate_up: torch.Tensor
    """[E, 2I, H]."""
    down: torch.Tensor
    """[E, H, I]."""
    gate_up_bias: torch.Tensor | None
    """[E, 2I]."""
    down_bias: torch.Tensor | None
    """[E, H]."""
    is_interleaved: bool
    """Whether rows of gate_up are gate, up, gate, ...; else all of the gate come first."""
    activation: Activation


def route(
    logits: torch.Tensor, top_k: int, *, normalizes: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """logits[T, E] -> (weights[T, top_k] in dtype, experts[T, top_k] int32), largest first.

    Weights are the softmax over all experts, or over the chosen ones when it normalizes. On ties
    the kernel takes the lowest expert; which one the reference takes is left open.
    """
    if not 1 <= top_k <= logits.shape[1]:
        raise ValueError(f"top_k {top_k} is not in 1 to {logits.shape[1]}, the number of experts")
    if logits.is_cpu:
        from octavo_kernels.reference.experts import route as run
    else:
        from octavo_kernels.gpu.expert_route import route as run
    return run(logits, top_k, normalizes=normalizes, dtype=dtype)


def grouped_experts(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, experts: ExpertWeights
) -> torch.Tensor:
    """x[T, H], weights[T, top_k] and chosen[T, top_k] of `route` -> [T, H]: the sum over a token's
    experts of weight * (down(act(gate_up(x))) + its bias), in x's dtype."""
    if x.shape[1] != experts.gate_up.shape[2]:
        raise ValueError(f"the experts take {experts.gate_up.shape[2]} inputs, got {x.shape[1]}")
    if x.is_cpu:
        from octavo_kernels.reference.experts import grouped_experts as run
    else:
        from octavo_kernels.gpu.experts import grouped_experts as run
    return run(x, weights, chosen, experts)


def picks_by_expert(
    chosen: torch.Tensor, num_experts: int
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """(expert, its tokens, its pairs) of each expert that some token has chosen.

    Waits for a GPU: how many there are is read back.
    """
    flat = chosen.flatten()
    counts = torch.bincount(flat, minlength=num_experts).tolist()
    pairs = flat.argsort(stable=True)
    first = 0
    for expert, count in enumerate(counts):
        if count:
            picks = pairs[first : first + count]
            first += count
            yield expert, picks // chosen.shape[1], picks
