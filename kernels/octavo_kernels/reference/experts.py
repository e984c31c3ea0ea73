"""Experts one after the other, in plain PyTorch: the oracle of the grouped kernels and the CPU's
path. Intermediate results are rounded to the tokens' dtype, as those of separate layers are."""

import torch
from torch.nn import functional

from octavo_kernels.expert_ops import Activation, ExpertWeights, picks_by_expert
from octavo_kernels.reference.gated_mul import gelu_tanh_mul, silu_mul


def route(
    logits: torch.Tensor, top_k: int, *, normalizes: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    weights, chosen = logits.float().softmax(dim=-1).topk(top_k, dim=-1)
    if normalizes:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights.to(dtype), chosen.int()


def grouped_experts(
    x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor, experts: ExpertWeights
) -> torch.Tensor:
    out = torch.zeros_like(x)
    for expert, tokens, picks in picks_by_expert(chosen, len(experts.gate_up)):
        y = _expert(experts, expert, x[tokens]) * weights.flatten()[picks, None]
        out.index_add_(0, tokens, y.to(out.dtype))
    return out


def _expert(experts: ExpertWeights, expert: int, x: torch.Tensor) -> torch.Tensor:
    gate_up_bias = None if experts.gate_up_bias is None else experts.gate_up_bias[expert]
    down_bias = None if experts.down_bias is None else experts.down_bias[expert]
    gate_up = functional.linear(x, experts.gate_up[expert], gate_up_bias)
    inner = activate(gate_up, experts.activation, is_interleaved=experts.is_interleaved)
    return functional.linear(inner, experts.down[expert], down_bias)


def activate(
    gate_up: torch.Tensor, activation: Activation, *, is_interleaved: bool
) -> torch.Tensor:
    """[T, 2I] -> [T, I]."""
    if is_interleaved:
        gate, up = gate_up[..., ::2], gate_up[..., 1::2]
    else:
        gate, up = gate_up.chunk(2, dim=-1)
    if activation.kind == "clamped_swiglu":
        gate = gate.clamp(max=activation.limit)
        up = up.clamp(min=-activation.limit, max=activation.limit)
        return (up + 1) * gate * torch.sigmoid(gate * activation.alpha)
    joined = torch.cat((gate, up), dim=-1) if is_interleaved else gate_up
    return silu_mul(joined) if activation.kind == "silu" else gelu_tanh_mul(joined)
