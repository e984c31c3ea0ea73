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
    STEPS: tl.constexpr,
    IS_FP8: tl.constexpr,
    IS_STATIC: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_previous(OVERLAP)
    token = tl.program_id(0)
    # A row's inputs lie in steps of 128; the two halves of a step take turns in what is stored.
    first = tl.program_id(1) * GROUP + tl.arange(0, STEPS) * 128
    low_at = first[:, None] + tl.arange(0, 64)[None, :]
    row = x + token.to(tl.int64) * stride
    low = tl.load(row + low_at, mask=low_at < K, other=0.0).to(tl.float32)
    high = tl.load(row + low_at + 64, mask=low_at + 64 < K, other=0.0).to(tl.float32)
    if IS_STATIC:
        scale = tl.load(static_scale).to(tl.float32)
    else:
        top: tl.constexpr = FP8_MAX if IS_FP8 else INT8_TOP
        largest = tl.max(tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1)), 0)
        scale = tl.maximum(tl.div_rn(largest, top), SMALLEST_SCALE)
    scaled = tl.div_rn(tl.join(low, high), scale)
    if IS_FP8:
        rounded = tl.minimum(tl.maximum(scaled, -FP8_MAX), FP8_MAX).to(tl.float8e4nv)
    else:
        limited = tl.minimum(tl.maximum(scaled, -1024.0), 1024.0)
        whole = (limited + ROUNDER) - ROUNDER
        rounded = tl.minimum(tl.maximum(whole, -128.0), 127.0).to(tl.int8)
    place = first[:, None] + tl.arange(0, 128)[None, :]
    stored = tl.reshape(rounded, (STEPS, 128))
    tl.store(values + token.to(tl.int64) * PADDED + place, stored, mask=place < PADDED)
    tl.store(scales + tl.program_id(1) * num_tokens + token, scale)


def quantize_tokens(
    x: torch.Tensor, dtype: torch.dtype, group_size: int | None, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `quant_ops.quantize_tokens`."""
    num_tokens, width = x.shape
    padded = triton.cdiv(width, STEP) * STEP
    group = group_size or padded
    steps = triton.next_power_of_2(group // STEP)
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
        STEPS=steps,
        IS_FP8=dtype == torch.float8_e4m3fn,
        IS_STATIC=scale is not None,
        num_warps=max(1, min(16, steps // 8)),
        **overlap_options(x.device),
    )
    return values, scales
