"""The product of one token with a packed weight: every program holds whole rows of words.

As in `single_row` there is no matrix unit: words are loaded into registers, numbers are made of
them by as few instructions as possible, and a group's sum is scaled, not each weight. Rows too long
for the registers go in chunks, loaded while those before are used.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous
from octavo_kernels.gpu.single_row_words import (
    ONE,
    load_fp8,
    load_int4,
    multiply_fp8,
    multiply_int4,
)
from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    ONE_TOKEN_PART,
    NormInput,
    NormOutput,
    RowNorm,
)
from octavo_kernels.packed_weight import PackedWeight


@dataclass(frozen=True)
class SingleRowConfig:
    block_rows: int
    """Outputs of a program."""
    chunk: int
    """Steps that are in registers at once, a power of two."""
    num_warps: int
    overlaps: bool
    """Whether words are loaded while the kernel before still runs."""


def single_row_config(weight: PackedWeight, *, gated: bool) -> SingleRowConfig:
    """Rows of up to 4,096 inputs at once, longer ones in chunks; small programs of little code,
    since a step's kernels take turns in the cache of instructions. Starting before the kernel in
    front has ended: a step of int4 2.34 -> 2.19 ms on an H200, of fp8 3.23 -> 3.38."""
    is_int4 = weight.kind == "int4"
    chunk = min(triton.next_power_of_2(weight.num_steps), 16 if is_int4 else 32)
    rows = 8 if is_int4 else 4
    if is_int4 and weight.num_steps > chunk:
        chunk, rows = 8, 4
    num_warps = max(1, min(4, chunk // 4))
    return SingleRowConfig(rows // 2 if gated else rows, chunk, num_warps, overlaps=is_int4)


@triton.jit
def _load(
    words, scales, zeros, row, is_row, step, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr, HAS_GROUPS: tl.constexpr,
    HAS_ZEROS: tl.constexpr, IS_INT4: tl.constexpr,
):  # fmt: skip
    if IS_INT4:
        return load_int4(words, scales, zeros, row, is_row, step, N, K, STEPS, CHUNK, GROUP,
                         HAS_GROUPS, HAS_ZEROS)  # fmt: skip
    else:
        return load_fp8(words, scales, row, is_row, step, N, K, STEPS, CHUNK, GROUP, SCALE_ROWS,
                        HAS_GROUPS)  # fmt: skip


@triton.jit
def _sums(
    words, scales, zeros, x, gamma, one, row, is_row, N: tl.constexpr, K: tl.constexpr,
    STEPS: tl.constexpr, CHUNK: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr,
    HAS_GROUPS: tl.constexpr, HAS_ZEROS: tl.constexpr, IS_INT4: tl.constexpr,
    HAS_NORM: tl.constexpr, OFFSET: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """(products of the rows before a row's scale, sum of the inputs' squares)."""
    chunks: tl.constexpr = (STEPS + CHUNK - 1) // CHUNK
    held = _load(words, scales, zeros, row, is_row, 0, N, K, STEPS, CHUNK, GROUP, SCALE_ROWS,
                 HAS_GROUPS, HAS_ZEROS, IS_INT4)  # fmt: skip
    ahead = held
    if chunks > 1:
        ahead = _load(words, scales, zeros, row, is_row, CHUNK, N, K, STEPS, CHUNK, GROUP,
                      SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, IS_INT4)  # fmt: skip
    wait_for_previous(OVERLAP)
    totals = tl.zeros((row.shape[0], CHUNK * 8), tl.float32)
    squares = tl.zeros((CHUNK * 64,), tl.float32)
    # Bytes that a loop carries take a register each: there the loop is unrolled.
    if IS_INT4:
        for step in range(0, STEPS, CHUNK):
            more, more_squares = multiply_int4(
                held[0], held[1], held[2], held[3], held[4], x, gamma, one, step, K, CHUNK,
                HAS_ZEROS, HAS_NORM, OFFSET,
            )  # fmt: skip
            totals += more
            squares += more_squares
            if chunks > 1:
                held = ahead
                # Nothing beyond the last step is read.
                ahead = _load(words, scales, zeros, row, is_row, step + 2 * CHUNK, N, K, STEPS,
                              CHUNK, GROUP, SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, IS_INT4)  # fmt: skip
    else:
        for i in tl.static_range(chunks):
            more, more_squares = multiply_fp8(
                held[0], held[1], x, gamma, i * CHUNK, K, CHUNK, HAS_GROUPS, HAS_NORM, OFFSET
            )
            totals += more
            squares += more_squares
            held = ahead
            if i + 2 < chunks:
                ahead = _load(words, scales, zeros, row, is_row, (i + 2) * CHUNK, N, K, STEPS,
                              CHUNK, GROUP, SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, IS_INT4)  # fmt: skip
    return tl.sum(totals, 1), tl.sum(squares) if HAS_NORM else 0.0


@triton.jit
def _single_row_packed_kernel(
    x, words, scales, zeros, out, bias, gamma, residual, scaled, next_gamma, squares, squares_in,
    eps, next_offset, one,
    N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK_N: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr,
    HAS_GROUPS: tl.constexpr, HAS_ZEROS: tl.constexpr, IS_INT4: tl.constexpr,
    GATED: tl.constexpr, HAS_NORM: tl.constexpr, OFFSET: tl.constexpr, HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr, PREPARES: tl.constexpr, PART: tl.constexpr, STRIDE: tl.constexpr,
    SQUARE_PARTS: tl.constexpr, SQUARES_BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    parts: tl.constexpr = 2 if GATED else 1
    idx = tl.arange(0, parts * BLOCK_N)
    first = tl.program_id(0).to(tl.int64) * BLOCK_N
    is_row = first + idx % BLOCK_N < N
    # With a gate its rows first, then those of the other part.
    row = first + idx % BLOCK_N + (idx // BLOCK_N) * N
    result, square_sum = _sums(
        words, scales, zeros, x, gamma, one, row, is_row, parts * N, K, STEPS, CHUNK,
        GROUP, SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, IS_INT4, HAS_NORM, OFFSET, OVERLAP,
    )  # fmt: skip
    if not HAS_GROUPS:
        result *= tl.load(scales + row // SCALE_ROWS, mask=is_row, other=0.0).to(tl.float32)
    if SQUARE_PARTS > 0:
        part = tl.arange(0, SQUARES_BLOCK)
        in_parts = tl.load(squares_in + part * STRIDE, mask=part < SQUARE_PARTS, other=0.0)
        square_sum = tl.sum(in_parts, 0)
    if HAS_NORM or SQUARE_PARTS > 0:
        result *= tl.rsqrt(square_sum / K + eps)
    if HAS_BIAS:
        result += tl.load(bias + row, mask=is_row, other=0.0).to(tl.float32)
    narrow: tl.constexpr = out.dtype.element_ty
    at = first + tl.arange(0, BLOCK_N)
    if GATED:
        gate, up = tl.split(tl.trans(result.to(narrow).to(tl.float32).reshape(2, BLOCK_N)))
        result = gate / (1.0 + tl.exp(-gate)) * up
    if ADDS:
        added = tl.load(residual + at, mask=at < N, other=0.0).to(tl.float32)
        result = result.to(narrow).to(tl.float32) + added
    tl.store(out + at, result.to(narrow), mask=at < N)
    if PREPARES:
        wide = tl.where(at < N, result.to(narrow).to(tl.float32), 0.0)
        factor = tl.load(next_gamma + at, mask=at < N, other=0.0).to(tl.float32) + next_offset
        tl.store(scaled + at, (wide * factor).to(narrow), mask=at < N)
        sums = tl.sum((wide * wide).reshape(BLOCK_N // PART, PART), 1)
        part = first // PART + tl.arange(0, BLOCK_N // PART)
        tl.store(squares + part * STRIDE, sums, mask=part * PART < N)


def single_row_packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: RowNorm | NormInput | None,
    residual: torch.Tensor | None,
    add: NormOutput | None = None,
    config: SingleRowConfig | None = None,
) -> torch.Tensor:
    """As `quant_ops.single_row_packed_linear`."""
    if config is None:
        config = single_row_config(weight, gated=gated)
    if add is not None:
        residual = add.residual
        config = replace(config, block_rows=max(config.block_rows, ONE_TOKEN_PART))
    num_rows = weight.num_rows // 2 if gated else weight.num_rows
    row_norm = norm if isinstance(norm, RowNorm) else None
    prepared = norm if isinstance(norm, NormInput) else None
    out = torch.empty(1, num_rows, dtype=x.dtype, device=x.device)
    _single_row_packed_kernel[(triton.cdiv(num_rows, config.block_rows),)](
        x,
        weight.words.view(torch.int32) if weight.kind == "int4" else weight.bytes_matrix(),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out,
        out if bias is None else bias,
        out if row_norm is None else row_norm.gamma,
        out if residual is None else residual,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if add is None else add.squares,
        out if prepared is None else prepared.squares,
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        ONE,
        N=num_rows,
        CHUNK=config.chunk,
        BLOCK_N=config.block_rows,
        GATED=gated,
        HAS_NORM=row_norm is not None,
        OFFSET=0.0 if row_norm is None else row_norm.gamma_offset,
        HAS_BIAS=bias is not None,
        ADDS=residual is not None,
        PREPARES=add is not None,
        PART=ONE_TOKEN_PART,
        STRIDE=MAX_SKINNY_TOKENS,
        SQUARE_PARTS=0 if prepared is None else prepared.num_parts,
        SQUARES_BLOCK=1 if prepared is None else triton.next_power_of_2(prepared.num_parts),
        num_warps=config.num_warps,
        **_constants(weight),
        **(overlap_options(x.device) if config.overlaps else {"OVERLAP": False}),
    )
    return out


def _constants(weight: PackedWeight) -> dict[str, Any]:
    return {
        "K": weight.width,
        "STEPS": weight.num_steps,
        "GROUP": min(weight.group_size, weight.padded_width),
        "SCALE_ROWS": weight.scale_rows,
        "HAS_GROUPS": not weight.has_row_scales,
        "HAS_ZEROS": weight.zeros is not None,
        "IS_INT4": weight.kind == "int4",
    }
