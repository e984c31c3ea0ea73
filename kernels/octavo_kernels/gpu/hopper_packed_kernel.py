"""The kernel of `hopper_packed`, in Gluon: a producer warp and one or two consumer warpgroups.

The producer copies tiles of words and of tokens to shared memory by TMA; the words do not depend on
the kernel before this one, so it starts with them while that still runs. A consumer turns words
into 16-bit tiles in the very registers from which the matrix unit takes them: two halves of 64 rows
of the weight each, tokens on the narrow side. Long rows may be cut into pieces; the last to arrive
adds them up.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.language.extra.cuda import gdc_wait

from octavo_kernels.gpu.gluon_names import block_barrier, copy_in
from octavo_kernels.gpu.hopper_packed_finish import add_pieces, finish
from octavo_kernels.gpu.hopper_packed_steps import first_rows, multiply_fp8, multiply_int4

WORDS = gl.constexpr(64)


@gluon.jit
def _copy_words(descriptor, words, barrier, stage, step, tile, N: gl.constexpr,
                GATED: gl.constexpr, CONSUMERS: gl.constexpr, IS_INT4: gl.constexpr):  # fmt: skip
    for consumer in gl.static_range(CONSUMERS):
        row0, row1 = first_rows(tile + consumer, N, GATED)
        place = (stage * CONSUMERS + consumer) * 2
        if IS_INT4:
            copy_in(descriptor, [step * N + row0, 0], barrier, words.index(place))
            copy_in(descriptor, [step * N + row1, 0], barrier, words.index(place + 1))
        else:
            copy_in(descriptor, [row0, step * WORDS], barrier, words.index(place))
            copy_in(descriptor, [row1, step * WORDS], barrier, words.index(place + 1))


@gluon.jit
def _copy_tokens(descriptor, tokens, barrier, stage, step, first_token, PLANES: gl.constexpr):
    for plane in gl.static_range(PLANES):
        copy_in(descriptor, [first_token, (step * PLANES + plane) * WORDS], barrier,
                tokens.index(stage * PLANES + plane))  # fmt: skip


@gluon.jit
def producer(
    words_desc, x_desc, words, tokens, full, free, first_step, num_steps, tile, first_token,
    N: gl.constexpr, GATED: gl.constexpr, CONSUMERS: gl.constexpr, IS_INT4: gl.constexpr,
    PLANES: gl.constexpr, STAGE_BYTES: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    for first in gl.static_range(STAGES):
        if first < num_steps:
            mbarrier.expect(full.index(first), STAGE_BYTES)
            _copy_words(words_desc, words, full.index(first), first, first_step + first, tile, N,
                        GATED, CONSUMERS, IS_INT4)  # fmt: skip
    if OVERLAP:
        gdc_wait()
    for first in gl.static_range(STAGES):
        if first < num_steps:
            _copy_tokens(x_desc, tokens, full.index(first), first, first_step + first, first_token,
                         PLANES)  # fmt: skip
    for step in range(STAGES, num_steps):
        stage = step % STAGES
        mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), STAGE_BYTES)
        _copy_words(words_desc, words, full.index(stage), stage, first_step + step, tile, N,
                    GATED, CONSUMERS, IS_INT4)  # fmt: skip
        _copy_tokens(x_desc, tokens, full.index(stage), stage, first_step + step, first_token,
                     PLANES)  # fmt: skip


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, scales, zeros, bias, out, residual, scaled, gamma, squares_in,
    squares_out, partial, arrivals, words, tokens, full, free, first_step, num_steps, first_tile,
    token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset,
    N: gl.constexpr, K: gl.constexpr, SCALE_ROWS: gl.constexpr, HAS_GROUPS: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SCALES_WEIGHTS: gl.constexpr, IS_INT4: gl.constexpr,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT_K: gl.constexpr,
    PARTS: gl.constexpr, STRIDE: gl.constexpr, GATED: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_BIAS: gl.constexpr, ADDS: gl.constexpr, ONE_TOKEN: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    tile = first_tile + CONSUMER
    row0, row1 = first_rows(tile, N, GATED)
    if IS_INT4:
        acc0, acc1, factor = multiply_int4(
            CONSUMER, scales, zeros, words, tokens, full, free, row0, row1, first_step, num_steps,
            squares_in, num_tokens, num_parts, eps, N, K, HAS_ZEROS, SCALES_WEIGHTS, BLOCK_M,
            STAGES, CONSUMERS, PARTS, STRIDE, HAS_NORM, ONE_TOKEN, OVERLAP,
        )  # fmt: skip
    else:
        acc0, acc1, factor = multiply_fp8(
            CONSUMER, scales, words, tokens, full, free, row0, row1, first_step, num_steps,
            squares_in, num_tokens, num_parts, eps, N, K, SCALE_ROWS, HAS_GROUPS, BLOCK_M, STAGES,
            CONSUMERS, PARTS, STRIDE, HAS_NORM, ONE_TOKEN, OVERLAP,
        )  # fmt: skip
    is_mine = SPLIT_K == 1
    if SPLIT_K > 1:
        unit = tile * token_tiles + token_tile
        acc0, acc1, is_mine = add_pieces(
            acc0, acc1, partial, arrivals, unit, piece, BLOCK_M, SPLIT_K
        )
    if is_mine:
        finish(
            acc0, acc1, factor, scales, bias, out, residual, scaled, gamma, squares_out, tile, row0,
            row1, token_tile, num_tokens, gamma_offset, N, SCALE_ROWS,
            (not IS_INT4) and (not HAS_GROUPS), BLOCK_M, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["num_tokens", "num_parts", "token_tiles"])
def hopper_packed_kernel(
    words_desc, x_desc, scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
    partial, arrivals, num_tokens, num_parts, token_tiles, eps, gamma_offset,
    N: gl.constexpr, K: gl.constexpr, STEPS: gl.constexpr, SCALE_ROWS: gl.constexpr,
    HAS_GROUPS: gl.constexpr, HAS_ZEROS: gl.constexpr, SCALES_WEIGHTS: gl.constexpr,
    IS_INT4: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    SPLIT_K: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr, GATED: gl.constexpr,
    HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr, ADDS: gl.constexpr, ONE_TOKEN: gl.constexpr,
    OVERLAP: gl.constexpr, CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLANES: gl.constexpr = 4 if IS_INT4 else 2
    STAGE_BYTES: gl.constexpr = CONSUMERS * 2 * 64 * 64 * 2 + PLANES * BLOCK_M * 64 * 2
    words = gl.allocate_shared_memory(gl.int16, [STAGES * CONSUMERS * 2, 64, 64], layout)
    tokens = gl.allocate_shared_memory(x_desc.dtype, [STAGES * PLANES, BLOCK_M, 64], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=CONSUMERS)
    fence_async_shared()
    block_barrier()
    program = gl.program_id(0)
    token_tile = program % token_tiles
    piece = (program // token_tiles) % SPLIT_K
    tile = program // (token_tiles * SPLIT_K) * CONSUMERS
    steps: gl.constexpr = (STEPS + SPLIT_K - 1) // SPLIT_K
    first_step = piece * steps
    num_steps = gl.minimum(steps, STEPS - first_step)
    if CONSUMERS == 1:
        gl.warp_specialize([
            (_consumer, (
                0,
                scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
                partial, arrivals, words, tokens, full, free, first_step, num_steps, tile,
                token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset, N, K,
                SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, SCALES_WEIGHTS, IS_INT4, BLOCK_M, STAGES,
                CONSUMERS, SPLIT_K, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS, ONE_TOKEN,
                OVERLAP,
            )),
            (producer, (
                words_desc, x_desc, words, tokens, full, free, first_step, num_steps, tile,
                token_tile * BLOCK_M, N, GATED, CONSUMERS, IS_INT4, PLANES, STAGE_BYTES, STAGES,
                OVERLAP,
            )),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consumer, (
                0,
                scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
                partial, arrivals, words, tokens, full, free, first_step, num_steps, tile,
                token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset, N, K,
                SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, SCALES_WEIGHTS, IS_INT4, BLOCK_M, STAGES,
                CONSUMERS, SPLIT_K, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS, ONE_TOKEN,
                OVERLAP,
            )),
            (_consumer, (
                1,
                scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
                partial, arrivals, words, tokens, full, free, first_step, num_steps, tile,
                token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset, N, K,
                SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, SCALES_WEIGHTS, IS_INT4, BLOCK_M, STAGES,
                CONSUMERS, SPLIT_K, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS, ONE_TOKEN,
                OVERLAP,
            )),
            (producer, (
                words_desc, x_desc, words, tokens, full, free, first_step, num_steps, tile,
                token_tile * BLOCK_M, N, GATED, CONSUMERS, IS_INT4, PLANES, STAGE_BYTES, STAGES,
                OVERLAP,
            )),
        ], [4, 1], [CONSUMER_REGISTERS, 24])  # fmt: skip
