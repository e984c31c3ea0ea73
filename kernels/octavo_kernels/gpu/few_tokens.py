"""Products of 2 to 16 tokens with a large matrix on Hopper, in Gluon: weights go through registers.

A program has 16 rows of the weight, its warps share the inputs. Each thread asks for 16 bytes of a
row at a time and hands them to the matrix unit as they came: the unit takes rows of W on its wide
side and sums over inputs in any order that both sides agree on, so neither W nor the tokens pass
through shared memory. Several programs a core keep memory busy while others begin and end.
`skinny_linear` does the same on any chip; tests hold the two together.
"""

from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo_kernels.few_ops import FEW_TILE
from octavo_kernels.gpu.launch import can_overlap
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, NormInput, NormOutput

MAX_ROWS_OF_TWO_PROGRAMS = 2 * 132 * FEW_TILE
"""Of a weight so small that no core of an H200 has more than two programs, which may then use all
registers."""
SQUARES_STRIDE = MAX_SKINNY_TOKENS


@dataclass(frozen=True)
class FewConfig:
    rows: int = FEW_TILE
    """Of the weight in a program; with a gate half of them the gate's. Sums of squares are left for
    each such tile."""
    chunk: int = 512
    """Inputs of a step, of all warps together."""
    depth: int = 4
    """Steps whose weights are on their way at a time."""
    num_warps: int = 4
    max_registers: int = 168
    """Of a thread: room for three programs of four warps a core."""
    eviction: str = "evict_first"
    """Of weights from the first-level cache, where the tokens should stay."""


def few_config(num_tokens: int, num_weight_rows: int) -> FewConfig:
    """num_weight_rows: both halves of a gated weight's. As much on its way as registers hold."""
    if num_weight_rows > MAX_ROWS_OF_TWO_PROGRAMS:
        return FewConfig(depth=4 if num_tokens <= 8 else 3)
    if num_tokens <= 8:
        return FewConfig(depth=4, max_registers=255)
    return FewConfig(chunk=256, depth=6, max_registers=255)


@gluon.jit
def _weight_pointers(w, tile, N: gl.constexpr, K: gl.constexpr, SHARE: gl.constexpr,
                     ROWS: gl.constexpr, GATED: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """[warps, ROWS, SHARE] of the first step; with a gate its rows, then those that it gates."""
    WARPS: gl.constexpr = gl.num_warps()
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    row = gl.arange(0, ROWS, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    column = gl.arange(0, SHARE, gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    if GATED:
        HALF: gl.constexpr = ROWS // 2
        row = tile * HALF + row % HALF + row // HALF * N
    else:
        row = tile * ROWS + row
    at = w + (row.to(gl.int64) * K)[None, :, None]
    return at + (warp * SHARE)[:, None, None] + column[None, None, :]


@gluon.jit
def _token_pointers(x, num_tokens, K: gl.constexpr, SHARE: gl.constexpr, TOKENS: gl.constexpr,
                    layout: gl.constexpr):  # fmt: skip
    """[warps, SHARE, TOKENS] of the first step. Tokens past the last are the last again: nobody
    reads their sums."""
    WARPS: gl.constexpr = gl.num_warps()
    warp = gl.arange(0, WARPS, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    column = gl.arange(0, SHARE, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
    token = gl.arange(0, TOKENS, gl.SliceLayout(0, gl.SliceLayout(1, layout)))
    at = x + (gl.minimum(token, num_tokens - 1) * K)[None, None, :]
    return at + (warp * SHARE)[:, None, None] + column[None, :, None]


@gluon.jit
def _weights(words, dtype: gl.constexpr, layout: gl.constexpr):
    """words[warps, ROWS, SHARE / 2] of 32 bits -> [warps, ROWS, SHARE]: inputs in an order in which
    each thread's 16 bytes are its parts of two products. Nothing moves between threads."""
    low = words.to(gl.int16).to(dtype, bitcast=True)
    high = (words >> 16).to(gl.int16).to(dtype, bitcast=True)
    warps: gl.constexpr = words.shape[0]
    rows: gl.constexpr = words.shape[1]
    share: gl.constexpr = 2 * words.shape[2]
    parts = gl.join(low, high).reshape([warps, rows, share // 32, 4, 2, 2, 2])
    parts = parts.permute(0, 1, 2, 4, 5, 3, 6).reshape([warps, rows, share])
    return gl.convert_layout(parts, layout, assert_trivial=True)


@gluon.jit
def _tokens(tokens, layout: gl.constexpr):
    """[warps, SHARE, TOKENS] -> the same with inputs in the order of `_weights`."""
    warps: gl.constexpr = tokens.shape[0]
    share: gl.constexpr = tokens.shape[1]
    count: gl.constexpr = tokens.shape[2]
    parts = tokens.reshape([warps, share // 32, 4, 2, 2, 2, count])
    parts = parts.permute(0, 1, 3, 4, 2, 5, 6).reshape([warps, share, count])
    return gl.convert_layout(parts, layout, assert_trivial=True)


@gluon.jit
def _step(words, tokens, acc):
    """acc plus the product of a step's weights and tokens."""
    w_layout: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    x_layout: gl.constexpr = gl.DotOperandLayout(1, acc.type.layout, 2)
    return mma_v2(_weights(words, tokens.dtype, w_layout), _tokens(tokens, x_layout), acc)


@gluon.jit
def _keep_order():
    """The compiler moves no load over this: weights are asked for when their registers are free,
    not when they are needed. Costs an instruction."""
    one: gl.constexpr = gl.BlockedLayout([1], [32], [gl.num_warps()], [0])
    gl.inline_asm_elementwise(
        "bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r",
        [gl.arange(0, 32 * gl.num_warps(), one)], dtype=gl.int32, is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def _products(ring, w_at, x_at, acc, K: gl.constexpr, CHUNK: gl.constexpr, DEPTH: gl.constexpr,
              EVICTION: gl.constexpr):  # fmt: skip
    """acc plus all products. ring: weights of the first DEPTH steps."""
    LATER: gl.constexpr = K // CHUNK - DEPTH
    tokens = gl.load(x_at)
    for _ in range(LATER // DEPTH):
        following = ()
        for i in gl.static_range(DEPTH):
            next_tokens = gl.load(x_at + (i + 1) * CHUNK)
            acc = _step(ring[i], tokens, acc)
            tokens = next_tokens
            later = gl.load(w_at + (DEPTH + i) * CHUNK // 2, eviction_policy=EVICTION)
            # Triton unpacks no tuples.
            following = following + (later,)  # type: ignore[assignment]  # noqa: RUF005
            _keep_order()
        ring = following
        w_at += DEPTH * CHUNK // 2
        x_at += DEPTH * CHUNK
    for i in gl.static_range(DEPTH + LATER % DEPTH):
        rest = tokens
        if i + 1 < DEPTH + LATER % DEPTH:
            tokens = gl.load(x_at + (i + 1) * CHUNK)
        acc = _step(ring[i], rest, acc)
        if i < LATER % DEPTH:
            last = gl.load(w_at + (DEPTH + i) * CHUNK // 2, eviction_policy=EVICTION)
            ring = ring + (last,)  # noqa: RUF005
            _keep_order()
    return acc


@gluon.jit
def _load_squares(squares, num_parts, TOKENS: gl.constexpr, PARTS: gl.constexpr,
                  STRIDE: gl.constexpr):  # fmt: skip
    """[PARTS, TOKENS]: partial sums of squares."""
    ACROSS: gl.constexpr = TOKENS // 4
    layout: gl.constexpr = gl.BlockedLayout(
        [1, 4], [32 // ACROSS, ACROSS], [gl.num_warps(), 1], [1, 0]
    )
    part = gl.arange(0, PARTS, gl.SliceLayout(1, layout))
    token = gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
    at = squares + part[:, None] * STRIDE + token[None, :]
    return gl.load(at, mask=(part < num_parts)[:, None], other=0.0)


@gluon.constexpr_function
def _result_layout(num_warps):
    """Eight rows by four tokens a warp."""
    return gl.BlockedLayout([1, 1], [8, 4], [1, num_warps], [0, 1])


@gluon.jit
def _result(acc, sums, bias, row, eps, narrow: gl.constexpr, N: gl.constexpr, K: gl.constexpr,
            GATED: gl.constexpr, HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr):  # fmt: skip
    """What the tile's sums [ROWS, TOKENS] are once normed, biased and gated."""
    layout: gl.constexpr = _result_layout(gl.num_warps())
    if GATED:
        gate, up = acc.reshape([2, acc.shape[0] // 2, acc.shape[1]]).permute(1, 2, 0).split()
        result = gl.convert_layout(gate, layout)
        up = gl.convert_layout(up, layout)
    else:
        result = gl.convert_layout(acc, layout)
    if HAS_NORM:
        total = gl.convert_layout(gl.sum(sums, 0), gl.SliceLayout(0, layout))
        factor = gl.rsqrt(total / K + eps)
        result *= factor[None, :]
        if GATED:
            up *= factor[None, :]
    if HAS_BIAS:
        result += gl.load(bias + row).to(gl.float32)[:, None]
        if GATED:
            up += gl.load(bias + N + row).to(gl.float32)[:, None]
    if GATED:
        # Rounded as the product alone would be, so that fused and unfused agree.
        result = result.to(narrow).to(gl.float32)
        result = result / (1.0 + gl.exp(-result)) * up.to(narrow).to(gl.float32)
    return result.to(narrow)


@gluon.jit(do_not_specialize=["num_tokens", "num_parts"])
def _few_kernel(
    x, w, out, bias, residual, scaled, gamma, squares_in, squares_out, num_tokens, num_parts, eps,
    gamma_offset, N: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, TOKENS: gl.constexpr,
    CHUNK: gl.constexpr, DEPTH: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr,
    GATED: gl.constexpr, HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr, ADDS: gl.constexpr,
    OVERLAP: gl.constexpr, TRIGGERS: gl.constexpr, EVICTION: gl.constexpr,
):  # fmt: skip
    if TRIGGERS:
        gdc_launch_dependents()
    WARPS: gl.constexpr = gl.num_warps()
    unit: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [WARPS, 1, 1], [1, 16, 8])
    w_layout: gl.constexpr = gl.DotOperandLayout(0, unit, 4)
    x_layout: gl.constexpr = gl.DotOperandLayout(1, unit, 8)
    SHARE: gl.constexpr = CHUNK // WARPS
    OUT_ROWS: gl.constexpr = ROWS // 2 if GATED else ROWS
    narrow: gl.constexpr = out.dtype.element_ty
    tile = gl.program_id(0)

    w_at = _weight_pointers(w, tile, N, K // 2, SHARE // 2, ROWS, GATED, w_layout)
    ring = (gl.load(w_at, eviction_policy=EVICTION),)
    for i in gl.static_range(1, DEPTH):
        later = gl.load(w_at + i * CHUNK // 2, eviction_policy=EVICTION)
        ring = ring + (later,)  # type: ignore[assignment]  # noqa: RUF005
    layout: gl.constexpr = _result_layout(WARPS)
    row = tile * OUT_ROWS + gl.arange(0, OUT_ROWS, gl.SliceLayout(1, layout))
    token = gl.arange(0, TOKENS, gl.SliceLayout(0, layout))
    at = token.to(gl.int64)[None, :] * N + row[:, None]
    inside = (token < num_tokens)[None, :]
    if ADDS:
        weight = gl.load(gamma + row).to(gl.float32) + gamma_offset
    # Where launches do not overlap it waits for nothing, but no load may be moved over it.
    gdc_wait()
    if OVERLAP:
        gdc_launch_dependents()

    # Asked for here, the product hides their way from memory.
    sums = None
    if HAS_NORM:
        sums = _load_squares(squares_in, num_parts, TOKENS, PARTS, STRIDE)
    if ADDS:
        added = gl.load(residual + at, mask=inside, other=0.0)
    x_at = _token_pointers(x, num_tokens, K, SHARE, TOKENS, x_layout)
    acc = gl.zeros([WARPS, ROWS, TOKENS], gl.float32, unit)
    acc = gl.sum(_products(ring, w_at, x_at, acc, K, CHUNK, DEPTH, EVICTION), 0)

    result = _result(acc, sums, bias, row, eps, narrow, N, K, GATED, HAS_NORM, HAS_BIAS)
    if ADDS:
        result = (result.to(gl.float32) + added.to(gl.float32)).to(narrow)
        wide = result.to(gl.float32)
        gl.store(scaled + at, (wide * weight[:, None]).to(narrow), mask=inside)
        gl.store(squares_out + tile * STRIDE + token, gl.sum(wide * wide, 0))
    gl.store(out + at, result, mask=inside)


def few_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: NormInput | None,
    add: NormOutput | None,
    overlaps: bool = False,
    config: FewConfig | None = None,
) -> torch.Tensor:
    """As `few_ops.few_linear`. config: rows divide the weight's (both halves' with a gate), `chunk`
    the width, of which there are at least `depth`; `rows` are those of a sum of squares."""
    num_tokens, width = x.shape
    num_weight_rows = len(weight)
    num_rows = num_weight_rows // 2 if gated else num_weight_rows
    config = config or few_config(num_tokens, num_weight_rows)
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    num_parts = 1 if norm is None else norm.num_parts
    _few_kernel[(num_weight_rows // config.rows,)](
        x,
        weight.view(torch.int32),
        out,
        out if bias is None else bias,
        out if add is None else add.residual,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if norm is None else norm.squares,
        out if add is None else add.squares,
        num_tokens,
        num_parts,
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        N=num_rows,
        K=width,
        ROWS=config.rows,
        TOKENS=8 if num_tokens <= 8 else 16,
        CHUNK=config.chunk,
        DEPTH=config.depth,
        PARTS=triton.next_power_of_2(num_parts),
        STRIDE=SQUARES_STRIDE,
        GATED=gated,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=add is not None,
        OVERLAP=overlaps,
        TRIGGERS=not overlaps and can_overlap(x.device),
        EVICTION=config.eviction,
        num_warps=config.num_warps,
        maxnreg=config.max_registers,
        **({"launch_pdl": True} if overlaps else {}),
    )
    return out
