"""Inputs of a product to 8 bits, with a scale for each token or each 128 of its inputs."""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous

STEP = 128
FP8_MAX = tl.constexpr(448.0)
INT8_TOP = tl.constexpr(127.5)
SMALLEST_SCALE = tl.constexpr(torch.finfo(torch.float32).eps)
ROUNDER = tl.constexpr(12582912.0)
"""1.5 * 2^23: added and taken away, it leaves the nearest whole number, ties to even."""


@triton.jit
def _quantize_kernel(
    x,
    values,
    scales,
    static_scale,
    num_tokens,
    stride,
    K: tl.constexpr,
    PADDED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_FP8: tl.constexpr,
    IS_STATIC: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_previous(OVERLAP)
    token = tl.program_id(0)
    place = tl.program_id(1) * GROUP + tl.arange(0, BLOCK)
    # Where the input that is stored at `place` comes from: halves of a step take turns.
    source = (place // 128) * 128 + (place % 2) * 64 + (place % 128) // 2
    inside = (place < PADDED) & (source < K)
    inputs = tl.load(x + token.to(tl.int64) * stride + source, mask=inside, other=0.0)
    inputs = inputs.to(tl.float32)
    if IS_STATIC:
        scale = tl.load(static_scale).to(tl.float32)
    else:
        top: tl.constexpr = FP8_MAX if IS_FP8 else INT8_TOP
        scale = tl.maximum(tl.div_rn(tl.max(tl.abs(inputs), 0), top), SMALLEST_SCALE)
    if IS_FP8:
        scaled = inputs * tl.div_rn(1.0, scale)
        rounded = tl.minimum(tl.maximum(scaled, -FP8_MAX), FP8_MAX).to(tl.float8e4nv)
    else:
        # The largest inputs lie on a tie between two whole numbers: only a division finds it.
        scaled = tl.div_rn(inputs, scale)
        limited = tl.minimum(tl.maximum(scaled, -1024.0), 1024.0)
        whole = (limited + ROUNDER) - ROUNDER
        rounded = tl.minimum(tl.maximum(whole, -128.0), 127.0).to(tl.int8)
    tl.store(values + token.to(tl.int64) * PADDED + place, rounded, mask=place < PADDED)
    tl.store(scales + tl.program_id(1) * num_tokens + token, scale)


def quantize_tokens(
    x: torch.Tensor, dtype: torch.dtype, group_size: int | None, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `quant_ops.quantize_tokens`."""
    num_tokens, width = x.shape
    padded = triton.cdiv(width, STEP) * STEP
    group = group_size or padded
    block = triton.next_power_of_2(group)
    if x.stride(1) != 1:
        x = x.contiguous()
    values = torch.empty(num_tokens, padded, dtype=dtype, device=x.device)
    scales = torch.empty(padded // group, num_tokens, dtype=torch.float32, device=x.device)
    _quantize_kernel[(num_tokens, padded // group)](
        x,
        values,
        scales,
        scales if scale is None else scale,
        num_tokens,
        x.stride(0),
        K=width,
        PADDED=padded,
        GROUP=group,
        BLOCK=block,
        IS_FP8=dtype == torch.float8_e4m3fn,
        IS_STATIC=scale is not None,
        num_warps=1 if block <= 128 else 8 if block <= 8192 else 16,
        **overlap_options(x.device),
    )
    return values, scales
