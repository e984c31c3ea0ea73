"""Products of few tokens with a large matrix, with what stands around them in a decoder fused in.

A program has a tile of the weight's rows and all tokens: rows of W stand on the matrix unit's wide
side, tokens on its narrow one. Long rows may be cut into pieces; the piece that finishes last adds
them up. A norm before the product is applied after it, as one factor a token, from sums of squares
that the product before has left; its weight is applied where the residual is made.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo_kernels.gpu.launch import can_overlap, capability, let_next_start
from octavo_kernels.gpu.pieces import add_pieces
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, NormInput, NormOutput

SQUARES_STRIDE = MAX_SKINNY_TOKENS


@dataclass(frozen=True)
class SkinnyConfig:
    block_n: int
    """Rows of the weight in a program; with a gate as many again."""
    block_m: int
    """Tokens, padded."""
    block_k: int
    split_k: int
    num_stages: int
    num_warps: int = 4


STAGES_WITHOUT_TMA = 3
"""At most, on chips before Hopper: some have 99 KiB of shared memory a core, Hopper has 227."""


def skinny_config(num_tokens: int, num_rows: int, width: int, *, gated: bool) -> SkinnyConfig:
    """Measured on an H200 at Llama-3.1-8B's shapes, 2 to 64 tokens: few programs with long rows
    beat many with pieces of them. num_rows: of the output. Gates of 17 to 32 tokens that are more
    than the cores share them in twos, long pieces take wider steps: 15 and 7 us of 4,529.

    Without programmatic dependent launch: with it a step of 32 rows took 4.73 instead of 4.59 ms.
    """
    block_m = 16 if num_tokens <= 16 else 32 if num_tokens <= 32 else 64
    if gated:
        if block_m == 64:
            return SkinnyConfig(64, block_m, 64, 1, 4)
        if block_m == 16:
            return SkinnyConfig(64, block_m, 128, 1, 3)
        return SkinnyConfig(64, block_m, 128, 1, 2 if num_rows // 64 > 132 else 4)
    programs, split_k = num_rows // 64, 1
    while programs * split_k * 2 <= 132 and width % (split_k * 2 * 128) == 0:
        piece = width // (split_k * 2)
        if piece < (256 if programs * split_k < 48 else 4096):
            break
        split_k *= 2
    piece = width // split_k
    if block_m < 64 and split_k > 1 and piece > 4096 and piece % 256 == 0:
        return SkinnyConfig(64, block_m, 256, split_k, 3)
    return SkinnyConfig(64, block_m, 128, split_k, 6)


def vocabulary_config(num_tokens: int) -> SkinnyConfig:
    """For rows by the hundred thousand: two programs a core, so that one loads while the other
    ends; the more tokens the more rows a program, since each reads all tokens anew.

    Measured on an H200, 128,256 rows of 4,096: 242, 249, 259, 273 us at 8, 32, 64, 128 tokens.
    """
    block_m = max(16, triton.next_power_of_2(num_tokens))
    if block_m == 16:
        return SkinnyConfig(64, block_m, 128, 1, 4)
    return SkinnyConfig(128, block_m, 64, 1, {32: 5, 64: 4, 128: 3}[block_m])


@triton.jit
def _load_tokens(x, x_descriptor, k, num_tokens, K: tl.constexpr, BLOCK_M: tl.constexpr,
                 BLOCK_K: tl.constexpr, USE_TMA: tl.constexpr):  # fmt: skip
    if USE_TMA:
        tile = x_descriptor.load([0, k])
    else:
        token = tl.arange(0, BLOCK_M)
        column = k + tl.arange(0, BLOCK_K)
        inside = (token < num_tokens)[:, None] & (column < K)[None, :]
        at = token.to(tl.int64)[:, None] * K + column[None, :]
        tile = tl.load(x + at, mask=inside, other=0.0)
    return tile


@triton.jit
def _load_rows(w, w_descriptor, first_row, k, N: tl.constexpr, K: tl.constexpr,
               BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, USE_TMA: tl.constexpr):  # fmt: skip
    if USE_TMA:
        tile = w_descriptor.load([first_row, k])
    else:
        row = (first_row + tl.arange(0, BLOCK_N)).to(tl.int64)
        column = k + tl.arange(0, BLOCK_K)
        at = row[:, None] * K + column[None, :]
        if N % BLOCK_N == 0:
            tile = tl.load(w + at)
        else:  # never so with a gate
            tile = tl.load(w + at, mask=(row < N)[:, None], other=0.0)
    return tile


@triton.jit
def _load_surroundings(squares, residual, gamma, tile, num_tokens, num_parts, N: tl.constexpr,
                       BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr, PARTS: tl.constexpr,
                       STRIDE: tl.constexpr, HAS_NORM: tl.constexpr,
                       ADDS: tl.constexpr):  # fmt: skip
    """(squares[parts, tokens], residual[tokens, rows], gamma[rows]) of the tile, where given."""
    row = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, BLOCK_M)
    sums = tl.zeros((1,), tl.float32)
    added = sums
    weight = sums
    if HAS_NORM:
        part = tl.arange(0, PARTS)
        at = part[:, None] * STRIDE + token[None, :]
        sums = tl.load(squares + at, mask=(part < num_parts)[:, None], other=0.0)
    if ADDS:
        at = token.to(tl.int64)[:, None] * N + row[None, :]
        inside = (token < num_tokens)[:, None] & (row < N)[None, :]
        added = tl.load(residual + at, mask=inside, other=0.0)
        weight = tl.load(gamma + row)
    return sums, added, weight


@triton.jit
def _finish(
    acc,
    up,
    tile,
    out,
    bias,
    scaled,
    squares_out,
    sums,
    added,
    weight,
    num_tokens,
    eps,
    gamma_offset,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
):
    """acc, up [BLOCK_N, BLOCK_M] float32 -> what is stored of this tile. sums, added, weight:
    `_load_surroundings`."""
    row = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    token = tl.arange(0, BLOCK_M)
    narrow: tl.constexpr = out.dtype.element_ty
    if HAS_NORM:
        factor = tl.rsqrt(tl.sum(sums, 0) / K + eps)
        acc *= factor[None, :]
        if GATED:
            up *= factor[None, :]
    if HAS_BIAS:
        acc += tl.load(bias + row).to(tl.float32)[:, None]
        if GATED:
            up += tl.load(bias + N + row).to(tl.float32)[:, None]
    if GATED:
        # Rounded as the product alone would be, so that fused and unfused agree.
        gate = acc.to(narrow).to(tl.float32)
        acc = gate / (1.0 + tl.exp(-gate)) * up.to(narrow).to(tl.float32)
    result = tl.trans(acc)
    at = token.to(tl.int64)[:, None] * N + row[None, :]
    inside = (token < num_tokens)[:, None] & (row < N)[None, :]
    if ADDS:
        total = (result.to(narrow).to(tl.float32) + added.to(tl.float32)).to(narrow)
        tl.store(out + at, total, mask=inside)
        wide = total.to(tl.float32)
        scale = weight.to(tl.float32) + gamma_offset
        tl.store(scaled + at, (wide * scale[None, :]).to(narrow), mask=inside)
        tl.store(squares_out + tile * STRIDE + token, tl.sum(wide * wide, 1))
    else:
        tl.store(out + at, result.to(narrow), mask=inside)


@triton.jit(do_not_specialize=["num_tokens", "num_parts"])
def _skinny_kernel(
    x,
    w,
    x_descriptor,
    w_descriptor,
    out,
    bias,
    residual,
    scaled,
    gamma,
    squares_in,
    squares_out,
    partial,
    arrivals,
    num_tokens,
    num_parts,
    eps,
    gamma_offset,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_K: tl.constexpr,
    PARTS: tl.constexpr,
    STRIDE: tl.constexpr,
    GATED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ADDS: tl.constexpr,
    USE_TMA: tl.constexpr,
    TRIGGERS: tl.constexpr,
):
    let_next_start(TRIGGERS)
    tile = tl.program_id(0)
    piece = tl.program_id(1)
    # Asked for here, the product hides their way from memory; needed at its end.
    sums, added, weight = _load_surroundings(
        squares_in, residual, gamma, tile, num_tokens, num_parts, N, BLOCK_N, BLOCK_M, PARTS,
        STRIDE, HAS_NORM, ADDS,
    )  # fmt: skip
    first_row = tile * BLOCK_N
    begin = piece * (K // SPLIT_K)
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in tl.range(0, K // SPLIT_K, BLOCK_K):
        k = begin + step
        tokens = tl.trans(
            _load_tokens(x, x_descriptor, k, num_tokens, K, BLOCK_M, BLOCK_K, USE_TMA)
        )
        rows = _load_rows(w, w_descriptor, first_row, k, N, K, BLOCK_N, BLOCK_K, USE_TMA)
        acc = tl.dot(rows, tokens, acc, input_precision="ieee")
        if GATED:
            rows = _load_rows(w, w_descriptor, N + first_row, k, N, K, BLOCK_N, BLOCK_K, USE_TMA)
            up = tl.dot(rows, tokens, up, input_precision="ieee")
    is_mine = True
    if SPLIT_K > 1:
        acc, is_mine = add_pieces(acc, partial, arrivals, tile, piece, BLOCK_N, BLOCK_M, SPLIT_K)
    if is_mine:
        _finish(
            acc, up, tile, out, bias, scaled, squares_out, sums, added, weight, num_tokens, eps,
            gamma_offset, N, K, BLOCK_N, BLOCK_M, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS,
        )  # fmt: skip


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: NormInput | None,
    add: NormOutput | None,
    arrivals: torch.Tensor | None,
    use_tma: bool | None = None,
    config: SkinnyConfig | None = None,
) -> torch.Tensor:
    """As `linear_ops.skinny_linear`; use_tma None: where the GPU has it. arrivals may be None where
    the config, if given, splits no rows; then rows may end within a tile, of a product alone:
    without bias, gate, norm and residual."""
    num_tokens, width = x.shape
    num_rows = weight.shape[0] // 2 if gated else weight.shape[0]
    config = config or skinny_config(num_tokens, num_rows, width, gated=gated)
    num_tiles = triton.cdiv(num_rows, config.block_n)
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    partial = out if config.split_k == 1 else _room_for_pieces(num_tiles, config, x.device)
    if use_tma is None:
        use_tma = x.is_cuda and capability(x.device)[0] >= 9
    num_parts = 1 if norm is None else norm.num_parts
    _skinny_kernel[(num_tiles, config.split_k)](
        x,
        weight,
        TensorDescriptor.from_tensor(x, [config.block_m, config.block_k]) if use_tma else None,
        TensorDescriptor.from_tensor(weight, [config.block_n, config.block_k]) if use_tma else None,
        out,
        out if bias is None else bias,
        out if add is None else add.residual,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if norm is None else norm.squares,
        out if add is None else add.squares,
        partial,
        partial if arrivals is None else arrivals,
        num_tokens,
        num_parts,
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        N=num_rows,
        K=width,
        BLOCK_N=config.block_n,
        BLOCK_M=config.block_m,
        BLOCK_K=config.block_k,
        SPLIT_K=config.split_k,
        PARTS=triton.next_power_of_2(num_parts),
        STRIDE=SQUARES_STRIDE,
        GATED=gated,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=add is not None,
        USE_TMA=use_tma,
        TRIGGERS=can_overlap(x.device),
        num_warps=config.num_warps,
        num_stages=config.num_stages if use_tma else min(config.num_stages, STAGES_WITHOUT_TMA),
    )
    return out


def _room_for_pieces(num_tiles: int, config: SkinnyConfig, device: torch.device) -> torch.Tensor:
    size = (num_tiles, config.split_k, config.block_n, config.block_m)
    return torch.empty(size, dtype=torch.float32, device=device)


def vocabulary_linear(
    x: torch.Tensor, weight: torch.Tensor, *, use_tma: bool | None = None
) -> torch.Tensor:
    """As `linear_ops.vocabulary_linear`, for 2 to MAX_VOCABULARY_TOKENS tokens."""
    return skinny_linear(
        x,
        weight,
        None,
        gated=False,
        norm=None,
        add=None,
        arrivals=None,
        use_tma=use_tma,
        config=vocabulary_config(x.shape[0]),
    )
