"""Products of 8-bit inputs with 8-bit weights: one scale a token and a row, or groups of 128.

Rows of the weight stand on the matrix unit's wide side, tokens on its narrow one. With groups every
128 inputs are multiplied into a fresh sum and added up scaled, in float32.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo_kernels.gpu.launch import capability, num_cores
from octavo_kernels.gpu.pieces import add_pieces
from octavo_kernels.packed_weight import MAX_TILES, PackedWeight

MAX_OWN_TOKENS = 64
"""Up to so many this kernel is faster than cuBLAS's product with row scales..."""
LONG_ROW = 8192
"""...and up to twice as many where rows are as long: cuBLAS does not cut them into pieces."""


@dataclass(frozen=True)
class ScaledConfig:
    block_n: int
    """Rows of the weight in a program."""
    block_m: int
    """Tokens."""
    block_k: int
    split_k: int
    num_warps: int
    num_stages: int


def scaled_config(
    num_tokens: int, num_rows: int, width: int, cores: int, *, has_groups: bool
) -> ScaledConfig:
    """Measured on an H200 at Llama-3.1-8B's shapes."""
    if num_tokens > _max_own_tokens(width) or (has_groups and num_tokens > MAX_OWN_TOKENS):
        return ScaledConfig(128, 128, 128, 1, 8 if has_groups else 4, 4)
    block_m = max(16, triton.next_power_of_2(num_tokens))
    block_k = 256 if not has_groups and width % 256 == 0 else 128
    programs, split_k = triton.cdiv(num_rows, 64), 1
    while programs * split_k * 2 <= 2 * cores and width % (split_k * 2 * block_k) == 0:
        if width // (split_k * 2) < 4 * block_k:
            break
        split_k *= 2
    return ScaledConfig(64, block_m, block_k, split_k, 4, 4 if block_m == 128 else 5)


@triton.jit
def _tile(matrix, descriptor, first_row, num_rows, k, WIDTH: tl.constexpr, ROWS: tl.constexpr,
          BLOCK_K: tl.constexpr, USE_TMA: tl.constexpr):  # fmt: skip
    if USE_TMA:
        found = descriptor.load([first_row, k])
    else:
        row = first_row + tl.arange(0, ROWS)
        at = row.to(tl.int64)[:, None] * WIDTH + k + tl.arange(0, BLOCK_K)[None, :]
        found = tl.load(matrix + at, mask=(row < num_rows)[:, None], other=0.0)
    return found


@triton.jit(do_not_specialize=["num_tokens"])
def _scaled_kernel(
    values,
    weight,
    values_descriptor,
    weight_descriptor,
    token_scales,
    row_scales,
    bias,
    out,
    partial,
    arrivals,
    num_tokens,
    N: tl.constexpr,
    WIDTH: tl.constexpr,
    SCALE_ROWS: tl.constexpr,
    HAS_GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    TOKEN_TILES_IN_BAND: tl.constexpr,
    USE_TMA: tl.constexpr,
):
    # Programs that follow each other share a band of tokens: its tiles stay in the cache.
    num_tiles: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    token_tiles = tl.cdiv(num_tokens, BLOCK_M)
    program = tl.program_id(0)
    piece = tl.program_id(1)
    band = program // (TOKEN_TILES_IN_BAND * num_tiles)
    in_band = tl.minimum(token_tiles - band * TOKEN_TILES_IN_BAND, TOKEN_TILES_IN_BAND)
    place = program % (TOKEN_TILES_IN_BAND * num_tiles)
    token_tile = band * TOKEN_TILES_IN_BAND + place % in_band
    tile = place // in_band
    row = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    token = token_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    is_token = token < num_tokens
    scale_column = row // SCALE_ROWS
    scale_columns: tl.constexpr = (N + SCALE_ROWS - 1) // SCALE_ROWS
    is_float: tl.constexpr = HAS_GROUPS or weight.dtype.element_ty != tl.int8
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32 if is_float else tl.int32)
    begin = piece * (WIDTH // SPLIT_K)
    for step in tl.range(0, WIDTH // SPLIT_K, BLOCK_K):
        k = begin + step
        tokens = _tile(values, values_descriptor, token_tile * BLOCK_M, num_tokens, k, WIDTH,
                       BLOCK_M, BLOCK_K, USE_TMA)  # fmt: skip
        rows = _tile(weight, weight_descriptor, tile * BLOCK_N, N, k, WIDTH, BLOCK_N, BLOCK_K,
                     USE_TMA)  # fmt: skip
        if HAS_GROUPS:
            group = k // 128
            of_token = tl.load(token_scales + group * num_tokens + token, mask=is_token, other=0.0)
            of_row = tl.load(row_scales + group * scale_columns + scale_column, mask=row < N,
                             other=0.0).to(tl.float32)  # fmt: skip
            part = tl.dot(rows, tl.trans(tokens)).to(tl.float32)
            acc += part * of_row[:, None] * of_token[None, :]
        elif is_float:
            acc = tl.dot(rows, tl.trans(tokens), acc)
        else:
            acc = tl.dot(rows, tl.trans(tokens), acc, out_dtype=tl.int32)
    is_mine = True
    if SPLIT_K > 1:
        unit = tile * token_tiles + token_tile
        acc, is_mine = add_pieces(acc, partial, arrivals, unit, piece, BLOCK_N, BLOCK_M, SPLIT_K)
    if is_mine:
        result = acc.to(tl.float32)
        if not HAS_GROUPS:
            of_row = tl.load(row_scales + scale_column, mask=row < N, other=0.0).to(tl.float32)
            of_token = tl.load(token_scales + token, mask=is_token, other=0.0)
            result = result * of_row[:, None] * of_token[None, :]
        if HAS_BIAS:
            result += tl.load(bias + row, mask=row < N, other=0.0).to(tl.float32)[:, None]
        at = token.to(tl.int64)[:, None] * N + row[None, :]
        inside = is_token[:, None] & (row < N)[None, :]
        tl.store(out + at, tl.trans(result).to(out.dtype.element_ty), mask=inside)


def scaled_linear(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
    *,
    use_tma: bool | None = None,
) -> torch.Tensor:
    """As `quant_ops.scaled_linear`; use_tma None: where the GPU has it."""
    num_tokens, width = values.shape
    is_many = num_tokens > _max_own_tokens(width)
    is_on_hopper = values.is_cuda and capability(values.device)[0] >= 9
    if is_on_hopper and is_many and _library_takes(weight, dtype):
        return _by_library(values, scales, weight, bias)
    has_groups = not weight.has_row_scales
    config = scaled_config(
        num_tokens, weight.num_rows, width, num_cores(values.device), has_groups=has_groups
    )
    token_tiles = triton.cdiv(num_tokens, config.block_m)
    num_programs = triton.cdiv(weight.num_rows, config.block_n) * token_tiles
    matrix = weight.bytes_matrix()
    out = torch.empty(num_tokens, weight.num_rows, dtype=dtype, device=values.device)
    partial = out
    if config.split_k > 1:
        assert num_programs <= MAX_TILES
        size = (num_programs, config.split_k, config.block_n, config.block_m)
        is_whole = weight.kind == "int8" and not has_groups
        kind = torch.int32 if is_whole else torch.float32
        partial = torch.empty(size, dtype=kind, device=values.device)
    if use_tma is None:
        use_tma = is_on_hopper
    block_k = config.block_k
    _scaled_kernel[(num_programs, config.split_k)](
        values,
        matrix,
        TensorDescriptor.from_tensor(values, [config.block_m, block_k]) if use_tma else None,
        TensorDescriptor.from_tensor(matrix, [config.block_n, block_k]) if use_tma else None,
        scales,
        weight.scales,
        out if bias is None else bias,
        out,
        partial,
        weight.arrivals,
        num_tokens,
        N=weight.num_rows,
        WIDTH=width,
        SCALE_ROWS=weight.scale_rows,
        HAS_GROUPS=has_groups,
        HAS_BIAS=bias is not None,
        BLOCK_N=config.block_n,
        BLOCK_M=config.block_m,
        BLOCK_K=block_k,
        SPLIT_K=config.split_k,
        TOKEN_TILES_IN_BAND=8,
        USE_TMA=use_tma,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
    return out


def _max_own_tokens(width: int) -> int:
    return 2 * MAX_OWN_TOKENS if width >= LONG_ROW else MAX_OWN_TOKENS


def _library_takes(weight: PackedWeight, dtype: torch.dtype) -> bool:
    """cuBLAS scales rows and tokens of fp8 into bfloat16, by float32 numbers, for rows in
    sixteens."""
    return (
        weight.kind == "fp8"
        and weight.scales.dtype == torch.float32
        and weight.has_row_scales
        and weight.scale_rows == 1
        and dtype == torch.bfloat16
        and weight.num_rows % 16 == 0
    )


def _by_library(
    values: torch.Tensor, scales: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
) -> torch.Tensor:
    out = torch._scaled_mm(
        values,
        weight.bytes_matrix().t(),
        scale_a=scales.view(-1, 1),
        scale_b=weight.scales.view(1, -1),
        out_dtype=torch.bfloat16,
        use_fast_accum=True,
    )
    return out if bias is None else out.add_(bias)
