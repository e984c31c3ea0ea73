"""Products of 16-bit inputs with weights of 4 or 8 bits, on any chip; and weights made 16-bit.

A program turns tiles of words into tiles of the weight in registers. Scales go onto the weights,
so that the result is that of the weight rounded to the inputs' type.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import num_cores
from octavo_kernels.gpu.pieces import add_pieces
from octavo_kernels.packed_weight import INT4_ZERO, MAX_TILES, PackedWeight

BLOCK_N = 64
ZERO = tl.constexpr(INT4_ZERO)


@triton.jit
def _load_words(words, row, step, N: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr):
    """A tile [rows, 64] int32 of a step."""
    word = tl.arange(0, 64)
    if BITS == 4:
        first = (row.to(tl.int64) + step * N) * 64
    else:
        first = (row.to(tl.int64) * STEPS + step) * 64
    return tl.load(words + first[:, None] + word[None, :], mask=(row < N)[:, None], other=0)


@triton.jit
def _load_group(numbers, row, first_input, N: tl.constexpr, K: tl.constexpr,
                GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr):  # fmt: skip
    """Scales or zeros of 64 inputs from first_input on, as float32 that broadcasts to the plane."""
    num_columns: tl.constexpr = (N + SCALE_ROWS - 1) // SCALE_ROWS
    column = row // SCALE_ROWS
    # Inputs that pad the last step have no group of their own.
    if GROUP % 64 == 0:
        at = (tl.minimum(first_input, K - 1) // GROUP) * num_columns + column
        found = tl.load(numbers + at, mask=row < N, other=0.0)[:, None]
    else:
        group = tl.minimum(first_input + tl.arange(0, 64), K - 1) // GROUP
        at = group[None, :] * num_columns + column[:, None]
        found = tl.load(numbers + at, mask=(row < N)[:, None], other=0.0)
    return found.to(tl.float32)


@triton.jit
def _plane(words, scales, zeros, row, first_input, shift: tl.constexpr, N: tl.constexpr,
           K: tl.constexpr, BITS: tl.constexpr, IS_FP8: tl.constexpr, GROUP: tl.constexpr,
           SCALE_ROWS: tl.constexpr, HAS_ZEROS: tl.constexpr):  # fmt: skip
    """The tile [rows, 64] of the weight in one plane of words, float32."""
    bits = (words >> shift) & (2**BITS - 1)
    if IS_FP8:
        values = bits.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    elif BITS == 8:
        values = bits.to(tl.int8).to(tl.float32)
    else:
        values = bits.to(tl.float32)
    if HAS_ZEROS:
        values -= _load_group(zeros, row, first_input, N, K, GROUP, SCALE_ROWS)
    elif BITS == 4:
        values -= ZERO
    return values * _load_group(scales, row, first_input, N, K, GROUP, SCALE_ROWS)


@triton.jit(do_not_specialize=["num_tokens"])
def _packed_kernel(
    x,
    words,
    scales,
    zeros,
    bias,
    out,
    partial,
    arrivals,
    num_tokens,
    N: tl.constexpr,
    K: tl.constexpr,
    STEPS: tl.constexpr,
    BITS: tl.constexpr,
    IS_FP8: tl.constexpr,
    GROUP: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    HAS_ZEROS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    SPLIT_K: tl.constexpr,
):
    tile = tl.program_id(0)
    token_tile = tl.program_id(1)
    piece = tl.program_id(2)
    row = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    token = token_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    planes: tl.constexpr = 16 // BITS
    steps: tl.constexpr = (STEPS + SPLIT_K - 1) // SPLIT_K
    narrow: tl.constexpr = x.dtype.element_ty
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(piece * steps, tl.minimum((piece + 1) * steps, STEPS)):
        tile_words = _load_words(words, row, step, N, STEPS, BITS).to(tl.int32)
        for plane in tl.static_range(planes):
            first_input = (step * planes + plane) * 64
            weight = _plane(tile_words, scales, zeros, row, first_input, plane * BITS, N, K, BITS,
                            IS_FP8, GROUP, SCALE_ROWS, HAS_ZEROS)  # fmt: skip
            column = first_input + tl.arange(0, 64)
            inside = (token < num_tokens)[:, None] & (column < K)[None, :]
            at = token.to(tl.int64)[:, None] * K + column[None, :]
            tokens = tl.load(x + at, mask=inside, other=0.0)
            acc = tl.dot(weight.to(narrow), tl.trans(tokens), acc, input_precision="ieee")
    is_mine = True
    if SPLIT_K > 1:
        unit = tile * tl.num_programs(1) + token_tile
        acc, is_mine = add_pieces(acc, partial, arrivals, unit, piece, BLOCK_N, BLOCK_M, SPLIT_K)
    if is_mine:
        if HAS_BIAS:
            acc += tl.load(bias + row, mask=row < N, other=0.0).to(tl.float32)[:, None]
        inside = (token < num_tokens)[:, None] & (row < N)[None, :]
        at = token.to(tl.int64)[:, None] * N + row[None, :]
        tl.store(out + at, tl.trans(acc).to(narrow), mask=inside)


@triton.jit
def _dequantize_kernel(
    words, scales, zeros, out,
    N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr, BITS: tl.constexpr,
    IS_FP8: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    step = tl.program_id(0)
    row = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile_words = _load_words(words, row, step, N, STEPS, BITS).to(tl.int32)
    planes: tl.constexpr = 16 // BITS
    for plane in tl.static_range(planes):
        first_input = (step * planes + plane) * 64
        weight = _plane(tile_words, scales, zeros, row, first_input, plane * BITS, N, K, BITS,
                        IS_FP8, GROUP, SCALE_ROWS, HAS_ZEROS)  # fmt: skip
        column = first_input + tl.arange(0, 64)
        inside = (row < N)[:, None] & (column < K)[None, :]
        at = row.to(tl.int64)[:, None] * K + column[None, :]
        tl.store(out + at, weight.to(out.dtype.element_ty), mask=inside)


def _constants(weight: PackedWeight) -> dict[str, int | bool]:
    return {
        "N": weight.num_rows,
        "K": weight.width,
        "STEPS": weight.num_steps,
        "BITS": weight.bits,
        "IS_FP8": weight.kind == "fp8",
        "GROUP": min(weight.group_size, weight.padded_width),
        "SCALE_ROWS": weight.scale_rows,
        "HAS_ZEROS": weight.zeros is not None,
    }


def choose_split(num_programs: int, num_steps: int, cores: int) -> int:
    """Pieces of a row so that every core has two programs, each of at least two steps."""
    split = 1
    while num_programs * split < 2 * cores and num_steps // (2 * split) >= 2:
        split *= 2
    return split


def packed_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """As `quant_ops.packed_linear`."""
    num_tokens, num_rows = x.shape[0], weight.num_rows
    block_m = min(64, max(16, triton.next_power_of_2(num_tokens)))
    tiles = (triton.cdiv(num_rows, BLOCK_N), triton.cdiv(num_tokens, block_m))
    num_programs = tiles[0] * tiles[1]
    split_k = choose_split(num_programs, weight.num_steps, num_cores(x.device))
    if num_programs > MAX_TILES:
        split_k = 1
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    partial = out
    if split_k > 1:
        size = (num_programs, split_k, BLOCK_N, block_m)
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
    _packed_kernel[(*tiles, split_k)](
        x,
        weight.words,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out if bias is None else bias,
        out,
        partial,
        weight.arrivals,
        num_tokens,
        HAS_BIAS=bias is not None,
        BLOCK_N=BLOCK_N,
        BLOCK_M=block_m,
        SPLIT_K=split_k,
        num_warps=4,
        # A scale for each input of a tile takes shared memory too.
        num_stages=3 if weight.group_size % 64 == 0 else 2,
        **_constants(weight),
    )
    return out


def dequantize(weight: PackedWeight, dtype: torch.dtype) -> torch.Tensor:
    """[N, K] in dtype."""
    shape = (weight.num_rows, weight.width)
    out = torch.empty(shape, dtype=dtype, device=weight.words.device)
    _dequantize_kernel[(weight.num_steps, triton.cdiv(weight.num_rows, BLOCK_N))](
        weight.words,
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out,
        BLOCK_N=BLOCK_N,
        num_warps=4,
        **_constants(weight),
    )
    return out
