"""The end of a tile of `hopper_packed`: pieces added up, then norm, bias, gate or residual."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

_block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier


@gluon.jit
def add_pieces(acc0, acc1, partial, arrivals, unit, piece, BLOCK_M: gl.constexpr,
               SPLIT_K: gl.constexpr):  # fmt: skip
    """(both halves summed over all pieces, whether this program, the last to arrive, has them)."""
    layout: gl.constexpr = acc0.type.layout
    row = gl.arange(0, 64, gl.SliceLayout(1, layout))
    token = gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    size: gl.constexpr = 128 * BLOCK_M
    first = partial + unit.to(gl.int64) * (SPLIT_K * size)
    first = first + row[:, None] * BLOCK_M + token[None, :]
    gl.store(first + piece * size, acc0)
    gl.store(first + piece * size + 64 * BLOCK_M, acc1)
    # All threads have stored before the one that counts this piece in releases.
    _block_barrier()
    is_last = gl.atomic_add(arrivals + unit, 1, sem="acq_rel") == SPLIT_K - 1
    if is_last:
        gl.store(arrivals + unit, 0)
        acc0 = gl.zeros([64, BLOCK_M], gl.float32, layout)
        acc1 = gl.zeros([64, BLOCK_M], gl.float32, layout)
        for idx in gl.static_range(SPLIT_K):
            acc0 += gl.load(first + idx * size, cache_modifier=".cg")
            acc1 += gl.load(first + idx * size + 64 * BLOCK_M, cache_modifier=".cg")
    return acc0, acc1, is_last


@gluon.jit
def _token_factors(squares, num_tokens, num_parts, eps, K: gl.constexpr, BLOCK_M: gl.constexpr,
                   PARTS: gl.constexpr, STRIDE: gl.constexpr, layout: gl.constexpr):  # fmt: skip
    """1 / root mean square of each token; squares[parts, STRIDE] are partial sums."""
    loaded: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0])
    part = gl.arange(0, PARTS, gl.SliceLayout(1, loaded))
    token = gl.arange(0, BLOCK_M, gl.SliceLayout(0, loaded))
    inside = (part < num_parts)[:, None] & (token < num_tokens)[None, :]
    sums = gl.load(squares + part[:, None] * STRIDE + token[None, :], mask=inside, other=0.0)
    total = gl.convert_layout(gl.sum(sums, 0), gl.SliceLayout(0, layout))
    return gl.rsqrt(total / K + eps)


@gluon.jit
def _one_factor(squares, num_parts, eps, K: gl.constexpr, PARTS: gl.constexpr,
                STRIDE: gl.constexpr):  # fmt: skip
    """As `_token_factors` of one token alone, whose sums come in many small parts."""
    part = gl.arange(0, PARTS, gl.BlockedLayout([1], [32], [4], [0]))
    sums = gl.load(squares + part * STRIDE, mask=part < num_parts, other=0.0)
    return gl.rsqrt(gl.sum(sums, 0) / K + eps)


@gluon.jit
def _add_half(acc, out, residual, scaled, gamma, squares, row, token, part, num_tokens,
              gamma_offset, N: gl.constexpr, STRIDE: gl.constexpr):  # fmt: skip
    """Rows [64] of the new residual, what the next norm needs of them, and their squares."""
    narrow: gl.constexpr = out.dtype.element_ty
    at = token[None, :] * N + row[:, None]
    is_token = token < num_tokens
    inside = is_token[None, :] & (row >= 0)[:, None]
    added = gl.load(residual + at, mask=inside, other=0.0).to(gl.float32)
    total = (acc.to(narrow).to(gl.float32) + added).to(narrow)
    gl.store(out + at, total, mask=inside)
    wide = total.to(gl.float32)
    weight = gl.load(gamma + row).to(gl.float32) + gamma_offset
    gl.store(scaled + at, (wide * weight[:, None]).to(narrow), mask=inside)
    gl.store(squares + part * STRIDE + token, gl.sum(wide * wide, 0), mask=is_token)


@gluon.jit
def finish(
    acc0, acc1, scales, bias, out, residual, scaled, gamma, squares_in, squares_out, tile, row0,
    row1, token_tile, num_tokens, num_parts, eps, gamma_offset, N: gl.constexpr, K: gl.constexpr,
    SCALE_ROWS: gl.constexpr, HAS_ROW_SCALES: gl.constexpr, BLOCK_M: gl.constexpr,
    PARTS: gl.constexpr, STRIDE: gl.constexpr, GATED: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_BIAS: gl.constexpr, ADDS: gl.constexpr, ONE_TOKEN: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = acc0.type.layout
    narrow: gl.constexpr = out.dtype.element_ty
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))
    token = token_tile * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(0, layout))
    if HAS_ROW_SCALES:
        acc0 *= gl.load(scales + (row0 + rows) // SCALE_ROWS).to(gl.float32)[:, None]
        acc1 *= gl.load(scales + (row1 + rows) // SCALE_ROWS).to(gl.float32)[:, None]
    if HAS_NORM and ONE_TOKEN:
        one = _one_factor(squares_in, num_parts, eps, K, PARTS, STRIDE)
        acc0 *= one
        acc1 *= one
    elif HAS_NORM:
        factor = _token_factors(squares_in, num_tokens, num_parts, eps, K, BLOCK_M, PARTS, STRIDE,
                                layout)  # fmt: skip
        acc0 *= factor[None, :]
        acc1 *= factor[None, :]
    if HAS_BIAS:
        acc0 += gl.load(bias + row0 + rows).to(gl.float32)[:, None]
        acc1 += gl.load(bias + row1 + rows).to(gl.float32)[:, None]
    if ADDS:
        _add_half(acc0, out, residual, scaled, gamma, squares_out, row0 + rows, token, 2 * tile,
                  num_tokens, gamma_offset, N, STRIDE)  # fmt: skip
        _add_half(acc1, out, residual, scaled, gamma, squares_out, row1 + rows, token, 2 * tile + 1,
                  num_tokens, gamma_offset, N, STRIDE)  # fmt: skip
    else:
        inside = (token < num_tokens)[None, :] & (rows >= 0)[:, None]
        if GATED:
            # Rounded as the product alone would be, so that fused and unfused agree.
            gate = acc0.to(narrow).to(gl.float32)
            result = gate / (1.0 + gl.exp(-gate)) * acc1.to(narrow).to(gl.float32)
            at = token.to(gl.int64)[None, :] * (N // 2) + (row0 + rows)[:, None]
            gl.store(out + at, result.to(narrow), mask=inside)
        else:
            at = token.to(gl.int64)[None, :] * N
            gl.store(out + at + (row0 + rows)[:, None], acc0.to(narrow), mask=inside)
            gl.store(out + at + (row1 + rows)[:, None], acc1.to(narrow), mask=inside)
