"""The product of one token with a large matrix: every program holds whole rows of the weight.

A row's elements are loaded into registers before the program waits for the kernel before it, where
launches overlap: they do not depend on it, so memory keeps streaming from one product to the next.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import (
    can_overlap,
    let_next_start,
    overlap_options,
    wait_for_previous,
)
from octavo_kernels.linear_ops import RowNorm

ROWS_WITH_NORM = 4
"""Each program repeats the norm: more rows a program repeat it less often."""
MANY_ROWS = 32768
"""From here on, as over a vocabulary, programs are so many that each takes several rows."""
MANY_ROWS_ELEMENTS = 8192
"""Elements of the weight in such a program, which has twice as many warps: measured on an H200,
128,256 rows of 4,096: 233 us, with the usual number of warps 237."""


@triton.jit
def _single_row_kernel(
    x,
    w,
    out,
    bias,
    gamma,
    residual,
    eps,
    gamma_offset,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    OVERLAP: tl.constexpr,
    TRIGGERS: tl.constexpr,
):
    let_next_start(TRIGGERS)
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    column = tl.arange(0, BLOCK_K)
    in_row = column < K
    at = row.to(tl.int64)[:, None] * K + column[None, :]
    if BLOCK_K == K and N % BLOCK_N == 0:
        weight = tl.load(w + at)
    else:
        inside = (row < N)[:, None] & in_row[None, :]
        weight = tl.load(w + at, mask=inside, other=0.0)
    if GATED:
        first_up = N * tl.cast(K, tl.int64)
        if BLOCK_K == K and N % BLOCK_N == 0:
            up_weight = tl.load(w + first_up + at)
        else:
            up_weight = tl.load(w + first_up + at, mask=inside, other=0.0)
    if HAS_NORM:
        scale = tl.load(gamma + column, mask=in_row, other=0.0).to(tl.float32) + gamma_offset
    wait_for_previous(OVERLAP)
    narrow: tl.constexpr = out.dtype.element_ty
    token = tl.load(x + column, mask=in_row, other=0.0).to(tl.float32)
    if ADDS:
        # Asked for here, it is there when the sums are.
        added = tl.load(residual + row, mask=row < N, other=0.0)
    if HAS_NORM:
        # The factor comes after the product: the two sums then do not wait for each other.
        factor = tl.rsqrt(tl.sum(token * token, 0) / K + eps)
        token *= scale
    result = tl.sum(weight.to(tl.float32) * token[None, :], 1)
    if HAS_NORM:
        result *= factor
    if HAS_BIAS:
        result += tl.load(bias + row, mask=row < N, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(up_weight.to(tl.float32) * token[None, :], 1)
        if HAS_NORM:
            up *= factor
        if HAS_BIAS:
            up += tl.load(bias + N + row, mask=row < N, other=0.0).to(tl.float32)
        gate = result.to(narrow).to(tl.float32)
        result = gate / (1.0 + tl.exp(-gate)) * up.to(narrow).to(tl.float32)
    if ADDS:
        result = result.to(narrow).to(tl.float32) + added.to(tl.float32)
    tl.store(out + row, result.to(narrow), mask=row < N)


def single_row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: RowNorm | None,
    residual: torch.Tensor | None,
    overlaps: bool = False,
) -> torch.Tensor:
    """As `linear_ops.single_row_linear`."""
    width = x.shape[1]
    num_rows = weight.shape[0] // 2 if gated else weight.shape[0]
    block_k = triton.next_power_of_2(width)
    block_n, num_warps = ROWS_WITH_NORM if norm is not None and not gated else 1, 4
    if num_rows >= MANY_ROWS:
        block_n, num_warps = max(block_n, MANY_ROWS_ELEMENTS // block_k), 8
    out = torch.empty(1, num_rows, dtype=x.dtype, device=x.device)
    _single_row_kernel[(triton.cdiv(num_rows, block_n),)](
        x,
        weight,
        out,
        out if bias is None else bias,
        out if norm is None else norm.gamma,
        out if residual is None else residual,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.gamma_offset,
        N=num_rows,
        K=width,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GATED=gated,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=residual is not None,
        TRIGGERS=not overlaps and can_overlap(x.device),
        num_warps=num_warps,
        **(overlap_options(x.device) if overlaps else {"OVERLAP": False}),
    )
    return out
