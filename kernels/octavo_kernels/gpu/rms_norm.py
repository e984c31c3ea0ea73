"""RMS normalisation over the last dimension, with an optional residual added first; that may come
with what it is added to in parts, as products that are split over their inputs leave it."""

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
    stride_part,
    stride_token,
    stride_row,
    residual_stride_token,
    residual_stride_row,
    eps,
    weight_offset,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
    NUM_PARTS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Each program normalises ROWS rows; row i is head i % rows_per_token of a token. x is the sum
    of NUM_PARTS tensors."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    inside = (row < num_rows)[:, None] & (column < WIDTH)[None, :]
    token, head = row // rows_per_token, row % rows_per_token
    source = (token * stride_token + head * stride_row)[:, None] + column[None, :]
    target = row[:, None] * WIDTH + column[None, :]
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32) + weight_offset
    wait_for_previous(OVERLAP)
    wide = tl.load(x + source, mask=inside, other=0.0).to(tl.float32)
    for part in tl.static_range(1, NUM_PARTS):
        wide += tl.load(x + part * stride_part + source, mask=inside, other=0.0)
    if HAS_RESIDUAL:
        source = (token * residual_stride_token + head * residual_stride_row)[:, None]
        added = tl.load(residual + source + column[None, :], mask=inside, other=0.0)
        # Rounded first: the norm must see what the next layer's residual will be.
        total = (wide + added.to(tl.float32)).to(y.dtype.element_ty)
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
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    strides = (0, *_row_strides(x))
    if residual is None:
        _launch(x, strides, weight, eps, weight_offset, y)
        return y
    total = torch.empty_like(y)
    _launch(x, strides, weight, eps, weight_offset, y, residual, total)
    return y, total


def add_parts_rms_norm(
    parts: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """parts[P, T, H] float32: see `linear_ops.add_parts_rms_norm`."""
    y = torch.empty(residual.shape, dtype=residual.dtype, device=residual.device)
    total = torch.empty_like(y)
    strides = (parts.stride(0), parts.stride(1), 0)
    _launch(parts, strides, weight, eps, weight_offset, y, residual, total, parts.shape[0])
    return y, total


def _launch(
    x: torch.Tensor,
    strides: tuple[int, int, int],
    weight: torch.Tensor,
    eps: float,
    weight_offset: float,
    y: torch.Tensor,
    residual: torch.Tensor | None = None,
    total: torch.Tensor | None = None,
    num_parts: int = 1,
) -> None:
    """strides: of x, from part to part, token to token, head to head."""
    width, num_rows = y.shape[-1], y.numel() // max(y.shape[-1], 1)
    if not num_rows:
        return
    block = triton.next_power_of_2(width)
    rows = max(1, min(TILE_ELEMENTS // block, 16))
    added = y if residual is None else residual
    _rms_norm_kernel[(triton.cdiv(num_rows, rows),)](
        x,
        added,
        weight,
        y,
        y if total is None else total,
        num_rows,
        y.shape[1] if y.dim() == 3 else 1,
        *strides,
        *_row_strides(added),
        eps,
        weight_offset,
        WIDTH=width,
        BLOCK=block,
        ROWS=rows,
        NUM_PARTS=num_parts,
        HAS_RESIDUAL=residual is not None,
        num_warps=min(16, max(4, block // 1024)),
        **overlap_options(x.device),
    )


def _row_strides(x: torch.Tensor) -> tuple[int, int]:
    """(stride of a token, stride of a head in it)."""
    if x.dim() not in (2, 3) or x.stride(-1) != 1:
        raise ValueError(f"rms_norm takes [T, H] or [T, heads, H], last stride 1; got {x.shape}")
    return x.stride(0), x.stride(1) if x.dim() == 3 else 0
