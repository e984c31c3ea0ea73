"""Which experts a token goes to, in one launch: softmax, the largest top_k, their weights."""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous


@triton.jit
def _route_kernel(
    logits,
    weights,
    chosen,
    stride_token,
    E: tl.constexpr,
    TOP_K: tl.constexpr,
    NORMALIZES: tl.constexpr,
    LANES: tl.constexpr,
    SLOTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    slot = tl.arange(0, SLOTS)
    left = tl.load(logits + token * stride_token + lane, mask=lane < E, other=-float("inf"))
    left = left.to(tl.float32)
    highest = tl.max(left, 0)
    total = tl.sum(tl.exp(left - highest), 0)
    picked = tl.zeros((SLOTS,), tl.float32)
    experts = tl.zeros((SLOTS,), tl.int32)
    for idx in tl.static_range(TOP_K):
        best = tl.max(left, 0)
        # An expert there is, even if the logits are not numbers.
        expert = tl.minimum(tl.argmax(left, 0), E - 1)
        picked = tl.where(slot == idx, tl.exp(best - highest), picked)
        experts = tl.where(slot == idx, expert, experts)
        left = tl.where(lane == expert, -float("inf"), left)
    if NORMALIZES:
        total = tl.sum(picked, 0)
    at = token * TOP_K + slot
    tl.store(weights + at, (picked / total).to(weights.dtype.element_ty), mask=slot < TOP_K)
    tl.store(chosen + at, experts, mask=slot < TOP_K)


def route(
    logits: torch.Tensor, top_k: int, *, normalizes: bool, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `expert_ops.route`; logits with last stride 1."""
    num_tokens, num_experts = logits.shape
    weights = torch.empty(num_tokens, top_k, dtype=dtype, device=logits.device)
    chosen = torch.empty(num_tokens, top_k, dtype=torch.int32, device=logits.device)
    if num_tokens:
        _route_kernel[(num_tokens,)](
            logits,
            weights,
            chosen,
            logits.stride(0),
            E=num_experts,
            TOP_K=top_k,
            NORMALIZES=normalizes,
            LANES=triton.next_power_of_2(num_experts),
            SLOTS=triton.next_power_of_2(top_k),
            num_warps=1,
            **overlap_options(logits.device),
        )
    return weights, chosen
