"""RMS normalisation over the last dimension, with an optional residual added first."""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous

TILE_ELEMENTS = 2048
"""Short rows (QK-norm) share a program until it has about this many elements."""


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    y,
    new_residual,
    num_rows,
    rows_per_token,
    stride_token,
    stride_row,
    residual_stride_token,
    residual_stride_row,
    eps,
    weight_offset,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Each program normalises ROWS rows; row i is head i % rows_per_token of a token."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
    token, head = row // rows_per_token, row % rows_per_token
    source = (token * stride_token + head * stride_row)[:, None] + column[None, :]
    target = row[:, None] * WIDTH + column[None, :]
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32) + weight_offset
    wait_for_previous(OVERLAP)
    wide = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        source = (token * residual_stride_token + head * residual_stride_row)[:, None]
        added = tl.load(residual + source + column[None, :], mask=inside, other=0.0)
        # Rounded first: the norm must see what the next layer's residual will be.
        total = (wide + added.to(tl.float32)).to(x.dtype.element_ty)
        tl.store(new_residual + target, total, mask=inside)
        wide = total.to(tl.float32)
    mean_square = tl.sum(wide * wide, axis=1) / WIDTH
    inverse_rms = tl.rsqrt(mean_square + eps)
    normed = wide * inverse_rms[:, None] * scale[None, :]
    tl.store(y + target, normed.to(y.dtype.element_ty), mask=inside)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """x is [T, H] or [T, heads, H], only its last stride must be 1; results are contiguous.

    out: where the norm goes, contiguous.
    """
    width, num_rows = x.shape[-1], x.numel() // max(x.shape[-1], 1)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    new_residual = y if residual is None else torch.empty_like(y)
    added = x if residual is None else residual
    if num_rows:
        block = triton.next_power_of_2(width)
        rows = max(1, min(TILE_ELEMENTS // block, 16))
        _rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
            x,
            added,
            weight,
            y,
            new_residual,
            num_rows,
            x.shape[1] if x.dim() == 3 else 1,
            *_row_strides(x),
            *_row_strides(added),
            eps,
            weight_offset,
            WIDTH=width,
            BLOCK=block,
            ROWS=rows,
            HAS_RESIDUAL=residual is not None,
            num_warps=min(16, max(4, block // 1024)),
            **overlap_options(x.device),
        )
    return y if residual is None else (y, new_residual)


def _row_strides(x: torch.Tensor) -> tuple[int, int]:
    """(stride of a token, stride of a head in it)."""
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        raise ValueError(f"rms_norm takes [T, H] or [T, heads, H], last stride 1; got {x.shape}")
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0
