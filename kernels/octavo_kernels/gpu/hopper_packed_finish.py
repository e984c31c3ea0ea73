"""The end of a tile of `hopper_packed`: pieces added up, then norm, bias, gate or residual.

Sums leave the matrix unit's layout first: `rows_together` has eight rows of a token in a thread, so
that what is read and written of tokens goes by 16 bytes.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from octavo_kernels.gpu.gluon_names import block_barrier


@gluon.constexpr_function
def rows_together():
    """Of [64 rows, 16 tokens or a multiple]."""
    return gl.BlockedLayout([8, 1], [8, 4], [1, 4], [0, 1])


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
    block_barrier()
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
def token_factors(squares, num_tokens, num_parts, eps, K: gl.constexpr, BLOCK_M: gl.constexpr,
                  PARTS: gl.constexpr, STRIDE: gl.constexpr, ONE_TOKEN: gl.constexpr,
                  layout: gl.constexpr):  # fmt: skip
    """1 / root mean square of each token [BLOCK_M]; squares[parts, STRIDE] are partial sums.

    ONE_TOKEN: there is one, whose sums come in many small parts.
    """
    if ONE_TOKEN:
        part = gl.arange(0, PARTS, gl.BlockedLayout([1], [32], [4], [0]))
        sums = gl.load(squares + part * STRIDE, mask=part < num_parts, other=0.0)
        one = gl.rsqrt(gl.sum(sums, 0) / K + eps)
        return gl.full([BLOCK_M], 1.0, gl.float32, gl.SliceLayout(0, layout)) * one
    else:
        loaded: gl.constexpr = gl.BlockedLayout([1, 1], [2, 16], [4, 1], [1, 0])
        part = gl.arange(0, PARTS, gl.SliceLayout(1, loaded))
        token = gl.arange(0, BLOCK_M, gl.SliceLayout(0, loaded))
        inside = (part < num_parts)[:, None] & (token < num_tokens)[None, :]
        at = part[:, None] * STRIDE + token[None, :]
        sums = gl.load(squares + at, mask=inside, other=0.0)
        total = gl.convert_layout(gl.sum(sums, 0), gl.SliceLayout(0, layout))
        return gl.rsqrt(total / K + eps)


@gluon.jit
def _add_half(half, out, residual, scaled, gamma, squares, row, token, part, num_tokens,
              gamma_offset, N: gl.constexpr, STRIDE: gl.constexpr):  # fmt: skip
    """Rows [64] of the new residual, what the next norm needs of them, and their squares."""
    narrow: gl.constexpr = out.dtype.element_ty
    is_token = token < num_tokens
    at = (token * N)[None, :] + row[:, None]
    inside = is_token[None, :] & (row >= 0)[:, None]
    added = gl.load(residual + at, mask=inside, other=0.0).to(gl.float32)
    weight = gl.load(gamma + row).to(gl.float32) + gamma_offset
    total = (half.to(gl.float32) + added).to(narrow)
    gl.store(out + at, total, mask=inside)
    wide = total.to(gl.float32)
    gl.store(scaled + at, (wide * weight[:, None]).to(narrow), mask=inside)
    gl.store(squares + part * STRIDE + token, gl.sum(wide * wide, 0), mask=is_token)


@gluon.jit
def finish(
    acc0, acc1, factor, scales, bias, out, residual, scaled, gamma, squares_out, tile, row0, row1,
    token_tile, num_tokens, gamma_offset, N: gl.constexpr, SCALE_ROWS: gl.constexpr,
    HAS_ROW_SCALES: gl.constexpr, BLOCK_M: gl.constexpr, STRIDE: gl.constexpr,
    GATED: gl.constexpr, HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr, ADDS: gl.constexpr,
):  # fmt: skip
    """factor: of each token, see `token_factors`."""
    layout: gl.constexpr = acc0.type.layout
    narrow: gl.constexpr = out.dtype.element_ty
    rows = gl.arange(0, 64, gl.SliceLayout(1, layout))
    if HAS_ROW_SCALES:
        acc0 *= gl.load(scales + (row0 + rows) // SCALE_ROWS).to(gl.float32)[:, None]
        acc1 *= gl.load(scales + (row1 + rows) // SCALE_ROWS).to(gl.float32)[:, None]
    if HAS_NORM:
        acc0 *= factor[None, :]
        acc1 *= factor[None, :]
    if HAS_BIAS:
        acc0 += gl.load(bias + row0 + rows).to(gl.float32)[:, None]
        acc1 += gl.load(bias + row1 + rows).to(gl.float32)[:, None]
    together: gl.constexpr = rows_together()
    row = gl.arange(0, 64, gl.SliceLayout(1, together))
    token = token_tile * BLOCK_M + gl.arange(0, BLOCK_M, gl.SliceLayout(0, together))
    inside = (token < num_tokens)[None, :] & (row >= 0)[:, None]
    if GATED:
        # Rounded as the product alone would be, so that fused and unfused agree.
        gate = acc0.to(narrow).to(gl.float32)
        result = gate / (1.0 + gl.exp(-gate)) * acc1.to(narrow).to(gl.float32)
        half = gl.convert_layout(result.to(narrow), together)
        at = (token.to(gl.int64) * (N // 2))[None, :] + (row0 + row)[:, None]
        gl.store(out + at, half, mask=inside)
    else:
        half0 = gl.convert_layout(acc0.to(narrow), together)
        half1 = gl.convert_layout(acc1.to(narrow), together)
        if ADDS:
            _add_half(half0, out, residual, scaled, gamma, squares_out, row0 + row, token,
                      2 * tile, num_tokens, gamma_offset, N, STRIDE)  # fmt: skip
            _add_half(half1, out, residual, scaled, gamma, squares_out, row1 + row, token,
                      2 * tile + 1, num_tokens, gamma_offset, N, STRIDE)  # fmt: skip
        else:
            at = (token.to(gl.int64) * N)[None, :] + row[:, None]
            gl.store(out + at + row0, half0, mask=inside)
            gl.store(out + at + row1, half1, mask=inside)
