"""The loop of a consumer warpgroup of `hopper_packed`: words to registers, products, scales."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from octavo_kernels.gpu.hopper_packed_finish import token_factors
from octavo_kernels.gpu.hopper_unpack import fp8_bytes, load_zeros, nibbles


@gluon.jit
def first_rows(tile, N: gl.constexpr, GATED: gl.constexpr):
    """Of the weight: where the two halves of a tile begin; a gate and what it gates go together."""
    row0 = tile * 128
    row1 = row0 + 64
    if GATED:
        row0 = tile * 64
        row1 = row0 + N // 2
    return row0, row1


@gluon.jit
def wait_for_factors(squares, num_tokens, num_parts, eps, K: gl.constexpr, BLOCK_M: gl.constexpr,
                     PARTS: gl.constexpr, STRIDE: gl.constexpr, HAS_NORM: gl.constexpr,
                     ONE_TOKEN: gl.constexpr, OVERLAP: gl.constexpr,
                     layout: gl.constexpr):  # fmt: skip
    """Waits for the kernel before this one. Factors of the tokens are made here, while the first
    words are on their way; without a norm they are nothing that is read."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()
    if HAS_NORM:
        return token_factors(squares, num_tokens, num_parts, eps, K, BLOCK_M, PARTS, STRIDE,
                             ONE_TOKEN, layout)  # fmt: skip
    else:
        return gl.full([BLOCK_M], 1.0, gl.float32, gl.SliceLayout(0, layout))


@gluon.jit
def _nibble_products(
    words, zero0, zero1, scale0, scale1, acc, tokens, first, zero_sum,
    HAS_ZEROS: gl.constexpr, SCALES_WEIGHTS: gl.constexpr,
):  # fmt: skip
    """Starts the products of 64 rows with the 256 inputs of a step: sums of its two groups, both
    `acc` itself where the weights are scaled."""
    a0 = nibbles(words, zero0, scale0, tokens, 0, HAS_ZEROS, SCALES_WEIGHTS)
    t0 = tokens.index(first).permute((1, 0))
    if SCALES_WEIGHTS:
        sum0 = warpgroup_mma(a0, t0, acc, is_async=True)
    else:
        sum0 = warpgroup_mma(a0, t0, zero_sum, use_acc=False, is_async=True)
    a1 = nibbles(words, zero0, scale0, tokens, 1, HAS_ZEROS, SCALES_WEIGHTS)
    sum0 = warpgroup_mma(a1, tokens.index(first + 1).permute((1, 0)), sum0, is_async=True)
    a2 = nibbles(words, zero1, scale1, tokens, 2, HAS_ZEROS, SCALES_WEIGHTS)
    t2 = tokens.index(first + 2).permute((1, 0))
    if SCALES_WEIGHTS:
        sum1 = warpgroup_mma(a2, t2, sum0, is_async=True)
    else:
        sum1 = warpgroup_mma(a2, t2, zero_sum, use_acc=False, is_async=True)
    a3 = nibbles(words, zero1, scale1, tokens, 3, HAS_ZEROS, SCALES_WEIGHTS)
    sum1 = warpgroup_mma(a3, tokens.index(first + 3).permute((1, 0)), sum1, is_async=True)
    return sum0, sum1


@gluon.jit
def _two_groups(numbers, group, row, N: gl.constexpr, last_group: gl.constexpr):
    """Scales of a step's two groups; beyond the last group there are only zero inputs."""
    first = gl.load(numbers + gl.minimum(group, last_group) * N + row)
    second = gl.load(numbers + gl.minimum(group + 1, last_group) * N + row)
    return first, second


@gluon.jit
def _two_zeros(zeros, scale, group, row, tokens, N: gl.constexpr, last_group: gl.constexpr,
               HAS_ZEROS: gl.constexpr):  # fmt: skip
    """As `_two_groups`; without zero points some tensors that nothing reads."""
    if HAS_ZEROS:
        first = load_zeros(zeros, gl.minimum(group, last_group) * N + row, tokens)
        second = load_zeros(zeros, gl.minimum(group + 1, last_group) * N + row, tokens)
        return first, second
    else:
        return scale, scale


@gluon.jit
def _add_scaled(
    words, place, z00, z01, z10, z11, s00, s01, s10, s11, acc0, acc1, zero_sum, tokens, first,
    HAS_ZEROS: gl.constexpr, a_layout: gl.constexpr,
):  # fmt: skip
    """A step's products of both halves with scales on the weights, which the sums then need not."""
    words0 = words.index(place).load(a_layout)
    _, acc0 = _nibble_products(
        words0, z00[:, None], z01[:, None], s00.to(tokens.dtype)[:, None],
        s01.to(tokens.dtype)[:, None], acc0, tokens, first, zero_sum, HAS_ZEROS, True,
    )  # fmt: skip
    acc0 = warpgroup_mma_wait(0, deps=[acc0])
    words1 = words.index(place + 1).load(a_layout)
    _, acc1 = _nibble_products(
        words1, z10[:, None], z11[:, None], s10.to(tokens.dtype)[:, None],
        s11.to(tokens.dtype)[:, None], acc1, tokens, first, zero_sum, HAS_ZEROS, True,
    )  # fmt: skip
    acc1 = warpgroup_mma_wait(0, deps=[acc1])
    return acc0, acc1


@gluon.jit
def _add_groups(
    words, place, z00, z01, z10, z11, s00, s01, s10, s11, acc0, acc1, zero_sum, tokens, first,
    free, HAS_ZEROS: gl.constexpr, IN_TURN: gl.constexpr, a_layout: gl.constexpr,
):  # fmt: skip
    """A step's products of both halves, each group summed alone and scaled then.

    IN_TURN: one half after the other, where both at once would not fit in the registers. free: is
    told as soon as the words and tokens have been read.
    """
    words0 = words.index(place).load(a_layout)
    g0, h0 = _nibble_products(
        words0, z00[:, None], z01[:, None], 0, 0, acc0, tokens, first, zero_sum, HAS_ZEROS, False
    )
    if IN_TURN:
        g0, h0 = warpgroup_mma_wait(0, deps=[g0, h0])
        acc0 += g0 * s00.to(gl.float32)[:, None] + h0 * s01.to(gl.float32)[:, None]
    words1 = words.index(place + 1).load(a_layout)
    g1, h1 = _nibble_products(
        words1, z10[:, None], z11[:, None], 0, 0, acc1, tokens, first, zero_sum, HAS_ZEROS, False
    )
    if IN_TURN:
        g1, h1 = warpgroup_mma_wait(0, deps=[g1, h1])
    else:
        g0, h0, g1, h1 = warpgroup_mma_wait(0, deps=[g0, h0, g1, h1])
        acc0 += g0 * s00.to(gl.float32)[:, None] + h0 * s01.to(gl.float32)[:, None]
    mbarrier.arrive(free, count=1)
    acc1 += g1 * s10.to(gl.float32)[:, None] + h1 * s11.to(gl.float32)[:, None]
    return acc0, acc1


@gluon.jit
def multiply_int4(
    CONSUMER: gl.constexpr, scales, zeros, words, tokens, full, free, row0, row1, first_step,
    num_steps, squares, num_tokens, num_parts, eps, N: gl.constexpr, K: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SCALES_WEIGHTS: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr,
    HAS_NORM: gl.constexpr, ONE_TOKEN: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """(rows from row0, rows from row1) of this consumer's tile, [64, BLOCK_M] float32 each, and the
    tokens' factors [BLOCK_M]."""
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    a_rows: gl.constexpr = gl.SliceLayout(1, a_layout)
    scale_rows: gl.constexpr = a_rows if SCALES_WEIGHTS else gl.SliceLayout(1, acc_layout)
    last_group: gl.constexpr = (K + 127) // 128 - 1
    of_zeros0 = row0 + gl.arange(0, 64, a_rows)
    of_zeros1 = row1 + gl.arange(0, 64, a_rows)
    of_scales0 = row0 + gl.arange(0, 64, scale_rows)
    of_scales1 = row1 + gl.arange(0, 64, scale_rows)
    group = 2 * first_step
    s00, s01 = _two_groups(scales, group, of_scales0, N, last_group)
    s10, s11 = _two_groups(scales, group, of_scales1, N, last_group)
    z00, z01 = _two_zeros(zeros, s00, group, of_zeros0, tokens, N, last_group, HAS_ZEROS)
    z10, z11 = _two_zeros(zeros, s10, group, of_zeros1, tokens, N, last_group, HAS_ZEROS)
    acc0 = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    acc1 = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    zero_sum = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    factor = wait_for_factors(squares, num_tokens, num_parts, eps, K, BLOCK_M, PARTS, STRIDE,
                              HAS_NORM, ONE_TOKEN, OVERLAP, acc_layout)  # fmt: skip
    for step in range(num_steps):
        stage = step % STAGES
        group = 2 * (first_step + gl.minimum(step + 1, num_steps - 1))
        next_s00, next_s01 = _two_groups(scales, group, of_scales0, N, last_group)
        next_s10, next_s11 = _two_groups(scales, group, of_scales1, N, last_group)
        next_z00, next_z01 = _two_zeros(
            zeros, next_s00, group, of_zeros0, tokens, N, last_group, HAS_ZEROS
        )
        next_z10, next_z11 = _two_zeros(
            zeros, next_s10, group, of_zeros1, tokens, N, last_group, HAS_ZEROS
        )
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        place = (stage * CONSUMERS + CONSUMER) * 2
        if SCALES_WEIGHTS:
            acc0, acc1 = _add_scaled(
                words, place, z00, z01, z10, z11, s00, s01, s10, s11, acc0, acc1, zero_sum, tokens,
                stage * 4, HAS_ZEROS, a_layout,
            )  # fmt: skip
            mbarrier.arrive(free.index(stage), count=1)
        else:
            acc0, acc1 = _add_groups(
                words, place, z00, z01, z10, z11, s00, s01, s10, s11, acc0, acc1, zero_sum, tokens,
                stage * 4, free.index(stage), HAS_ZEROS, BLOCK_M > 16 or HAS_ZEROS, a_layout,
            )  # fmt: skip
        s00, s01, s10, s11 = next_s00, next_s01, next_s10, next_s11
        z00, z01, z10, z11 = next_z00, next_z01, next_z10, next_z11
    return acc0, acc1, factor


@gluon.jit
def _byte_products(words, acc, tokens, first, use_acc: gl.constexpr):
    """Starts the products of 64 rows with the 128 inputs of a step."""
    low = fp8_bytes(words, tokens, 0)
    total = warpgroup_mma(
        low, tokens.index(first).permute((1, 0)), acc, use_acc=use_acc, is_async=True
    )
    high = fp8_bytes(words, tokens, 1)
    return warpgroup_mma(high, tokens.index(first + 1).permute((1, 0)), total, is_async=True)


@gluon.jit
def multiply_fp8(
    CONSUMER: gl.constexpr, scales, words, tokens, full, free, row0, row1, first_step, num_steps,
    squares, num_tokens, num_parts, eps, N: gl.constexpr, K: gl.constexpr,
    SCALE_ROWS: gl.constexpr, HAS_GROUPS: gl.constexpr, BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr, CONSUMERS: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr,
    HAS_NORM: gl.constexpr, ONE_TOKEN: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    """As `multiply_int4`; without groups the scales of rows are left to the end."""
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    a_layout: gl.constexpr = gl.DotOperandLayout(0, acc_layout, 2)
    columns: gl.constexpr = (N + SCALE_ROWS - 1) // SCALE_ROWS
    rows = gl.arange(0, 64, gl.SliceLayout(1, acc_layout))
    column0 = (row0 + rows) // SCALE_ROWS
    column1 = (row1 + rows) // SCALE_ROWS
    acc0 = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    acc1 = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    zero_sum = gl.zeros([64, BLOCK_M], gl.float32, acc_layout)
    factor = wait_for_factors(squares, num_tokens, num_parts, eps, K, BLOCK_M, PARTS, STRIDE,
                              HAS_NORM, ONE_TOKEN, OVERLAP, acc_layout)  # fmt: skip
    for step in range(num_steps):
        stage = step % STAGES
        place = (stage * CONSUMERS + CONSUMER) * 2
        if HAS_GROUPS:
            of_group = scales + (first_step + step) * columns
            s0 = gl.load(of_group + column0).to(gl.float32)
            s1 = gl.load(of_group + column1).to(gl.float32)
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            g0 = _byte_products(words.index(place).load(a_layout), zero_sum, tokens, stage * 2,
                                False)  # fmt: skip
            g0 = warpgroup_mma_wait(0, deps=[g0])
            acc0 += g0 * s0[:, None]
            g1 = _byte_products(words.index(place + 1).load(a_layout), zero_sum, tokens, stage * 2,
                                False)  # fmt: skip
            g1 = warpgroup_mma_wait(0, deps=[g1])
            acc1 += g1 * s1[:, None]
        else:
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            words0 = words.index(place).load(a_layout)
            acc0 = _byte_products(words0, acc0, tokens, stage * 2, True)
            words1 = words.index(place + 1).load(a_layout)
            acc1 = _byte_products(words1, acc1, tokens, stage * 2, True)
            acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
        mbarrier.arrive(free.index(stage), count=1)
    return acc0, acc1, factor
