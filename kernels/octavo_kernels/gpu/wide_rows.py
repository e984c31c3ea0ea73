"""What surrounds a product of many tokens, behind any product: the plain form of `hopper_wide`.

A program has one token and one tile of the product's columns.
"""

import torch
import triton
import triton.language as tl
from torch.nn import functional

from octavo_kernels.linear_ops import NormInput, NormOutput
from octavo_kernels.wide_ops import WIDE_TILE


@triton.jit
def _wide_rows_kernel(
    product,
    out,
    residual,
    scaled,
    gamma,
    squares_in,
    squares_out,
    num_parts,
    stride_in,
    stride_out,
    eps,
    gamma_offset,
    N: tl.constexpr,
    K: tl.constexpr,
    TILE: tl.constexpr,
    PARTS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    ADDS: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    tile = tl.program_id(1)
    column = tile * TILE + tl.arange(0, TILE)
    at = token * N + column
    narrow: tl.constexpr = out.dtype.element_ty
    result = tl.load(product + at).to(tl.float32)
    if HAS_NORM:
        part = tl.arange(0, PARTS)
        sums = tl.load(squares_in + part * stride_in + token, mask=part < num_parts, other=0.0)
        result *= tl.rsqrt(tl.sum(sums, 0) / K + eps)
    result = result.to(narrow)
    if ADDS:
        added = tl.load(residual + at).to(tl.float32)
        result = (result.to(tl.float32) + added).to(narrow)
        wide = result.to(tl.float32)
        scale = tl.load(gamma + column).to(tl.float32) + gamma_offset
        tl.store(scaled + at, (wide * scale).to(narrow))
        tl.store(squares_out + tile * stride_out + token, tl.sum(wide * wide, 0))
    tl.store(out + at, result)


def wide_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: NormInput | None,
    add: NormOutput | None,
) -> torch.Tensor:
    """As `wide_ops.wide_linear`, for at least one token."""
    product = functional.linear(x, weight)
    num_tokens, num_rows = product.shape
    out = torch.empty_like(product)
    num_parts = 1 if norm is None else norm.num_parts
    _wide_rows_kernel[(num_tokens, num_rows // WIDE_TILE)](
        product,
        out,
        out if add is None else add.residual,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if norm is None else norm.squares,
        out if add is None else add.squares,
        num_parts,
        0 if norm is None else norm.squares.stride(0),
        0 if add is None else add.squares.stride(0),
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        N=num_rows,
        K=x.shape[1],
        TILE=WIDE_TILE,
        PARTS=triton.next_power_of_2(num_parts),
        HAS_NORM=norm is not None,
        ADDS=add is not None,
    )
    return out
