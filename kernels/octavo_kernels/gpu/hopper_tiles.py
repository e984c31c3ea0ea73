"""What products of many tokens on Hopper share, in Gluon: order of tiles, copies, sums.

Persistent programs: a producer warp copies tiles of tokens and of the weight by TMA, two consumer
warpgroups multiply 64 tokens each by all rows of the tile. What becomes of the sums is the affair
of the kernels that use this.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

# Names differ between Triton 3.6 and later.
_block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared
REINTERPRET_IS_PUBLIC = gl.constexpr(hasattr(gl.shared_memory_descriptor, "reinterpret"))

BLOCK_M = 128
"""Tokens of a tile, half of them a consumer's."""
BLOCK_K = gl.constexpr(64)
"""Inputs of a stage: a 128-byte row of swizzled shared memory."""
SHARED_BYTES = 196_608
"""Of the stages; the rest of a core's is for results on their way out."""
GROUP = 8
"""Tiles of tokens that go over the weight together: its rows then come from the second-level cache
but once for all of them."""
NUM_WARPS = 4
MEAN_REGISTERS = 168
"""Of a thread, out of CONSUMER_REGISTERS of two warpgroups and PRODUCER_REGISTERS of one."""
CONSUMER_REGISTERS = gl.constexpr(240)
PRODUCER_REGISTERS = gl.constexpr(24)


def num_stages(block_n: int) -> int:
    """As many as find room. block_n: rows of the weight in a tile."""
    stage_bytes: int = (BLOCK_M + block_n) * BLOCK_K.value * 2
    return min(8, SHARED_BYTES // stage_bytes)


@gluon.jit
def place(item, num_m, num_n, GROUP: gl.constexpr):
    """An item's tile of tokens and tile of rows: all rows for GROUP tiles of tokens, then on."""
    first = item // (GROUP * num_n) * GROUP
    size = gl.minimum(num_m - first, GROUP)
    rest = item % (GROUP * num_n)
    return first + rest % size, rest // size


@gluon.jit
def allocate(dtype: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr):
    """Shared memory of the tokens (two tiles a stage) and rows, and the barriers of stages that are
    full and that are free."""
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x_s = gl.allocate_shared_memory(dtype, [STAGES * 2, 64, BLOCK_K], layout)
    w_s = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, BLOCK_K], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    _block_barrier()
    return x_s, w_s, full, free


@gluon.jit
def wait_for_previous(OVERLAP: gl.constexpr):
    """As `launch.wait_for_previous`; every part of the program that reads what another kernel has
    written calls it."""
    if OVERLAP:
        gdc_wait()
        gdc_launch_dependents()


@gluon.jit
def _copy_rows(w_desc, w_s, full, stage, row, k, BETWEEN: gl.constexpr, BLOCK_N: gl.constexpr):
    half: gl.constexpr = BLOCK_N // 2
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    halves: gl.constexpr = [2, half, BLOCK_K]
    if REINTERPRET_IS_PUBLIC:
        rows = w_s.index(stage).reinterpret(w_desc.dtype, halves, layout)
    else:
        rows = w_s.index(stage)._reinterpret(w_desc.dtype, halves, layout)
    _copy_in(w_desc, [row, k], full.index(stage), rows.index(0))
    _copy_in(w_desc, [row + BETWEEN, k], full.index(stage), rows.index(1))


@gluon.jit
def produce(
    x_desc, w_desc, residual_desc, x_s, w_s, full, free, num_m,
    NUM_N: gl.constexpr, K: gl.constexpr, ROW_STEP: gl.constexpr, BETWEEN: gl.constexpr,
    BLOCK_N: gl.constexpr, ADDS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    """The producer warp. A tile of rows is two halves, BETWEEN rows from each other in the weight;
    its first row is ROW_STEP from that of the tile before.

    ADDS: behind a tile's inputs come its columns of the residual, a stage for each 64 of them, in
    the place of tokens. OVERLAP: the first rows are fetched while the kernel in front still runs.
    """
    stage_bytes: gl.constexpr = (128 + BLOCK_N) * BLOCK_K * 2
    if OVERLAP:
        _, n = place(gl.program_id(0), num_m, NUM_N, GROUP)
        for first in gl.static_range(STAGES):
            mbarrier.expect(full.index(first), stage_bytes)
            _copy_rows(w_desc, w_s, full, first, n * ROW_STEP, first * BLOCK_K, BETWEEN, BLOCK_N)
        wait_for_previous(OVERLAP)
    step = 0
    for item in range(gl.program_id(0), num_m * NUM_N, gl.num_programs(0)):
        m, n = place(item, num_m, NUM_N, GROUP)
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            is_new = step >= STAGES if OVERLAP else True
            if is_new:
                mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(stage), stage_bytes)
            for consumer in gl.static_range(2):
                _copy_in(x_desc, [m * 128 + consumer * 64, k], full.index(stage),
                         x_s.index(stage * 2 + consumer))  # fmt: skip
            if is_new:
                _copy_rows(w_desc, w_s, full, stage, n * ROW_STEP, k, BETWEEN, BLOCK_N)
            step += 1
        if ADDS:
            for column in range(n * BLOCK_N, (n + 1) * BLOCK_N, 64):
                stage = step % STAGES
                mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
                mbarrier.expect(full.index(stage), 128 * 64 * 2)
                for consumer in gl.static_range(2):
                    _copy_in(residual_desc, [m * 128 + consumer * 64, column], full.index(stage),
                             x_s.index(stage * 2 + consumer))  # fmt: skip
                step += 1


@gluon.jit
def multiply(
    CONSUMER: gl.constexpr, x_s, w_s, full, free, step, K: gl.constexpr, BLOCK_N: gl.constexpr,
    STAGES: gl.constexpr,
):  # fmt: skip
    """A consumer's sums of a tile, [64, BLOCK_N] float32. step: stages that it has used before."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc = gl.zeros([64, BLOCK_N], gl.float32, layout)
    for _ in range(0, K, BLOCK_K):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        x = x_s.index(stage * 2 + CONSUMER)
        acc = warpgroup_mma(x, w_s.index(stage).permute((1, 0)), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=[acc])
        # The stage before has been read; a tile's last one is told with the next tile's first.
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
        step += 1
    acc = warpgroup_mma_wait(0, deps=[acc])
    return acc, step


@gluon.jit
def next_residual(
    CONSUMER: gl.constexpr, x_s, full, free, step, layout: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """A consumer's next 64 columns of the residual, [64, 64]."""
    stage = step % STAGES
    mbarrier.wait(full.index(stage), (step // STAGES) & 1)
    added = x_s.index(stage * 2 + CONSUMER).load(layout)
    mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1)
    return added, step + 1


@gluon.jit
def load_squares(squares, stride, num_parts, first_token, num_tokens, PARTS: gl.constexpr):
    """Of a consumer's 64 tokens, [64, PARTS]; squares: as of `NormInput`, stride between parts."""
    layout: gl.constexpr = gl.BlockedLayout([1, PARTS // 2], [16, 2], [4, 1], [0, 1])
    token = first_token + gl.arange(0, 64, gl.SliceLayout(1, layout))
    part = gl.arange(0, PARTS, gl.SliceLayout(0, layout))
    inside = (token < num_tokens)[:, None] & (part < num_parts)[None, :]
    return gl.load(squares + part[None, :] * stride + token[:, None], mask=inside, other=0.0)


@gluon.jit
def scale_by_rms(acc, sums, eps, K: gl.constexpr, BLOCK_N: gl.constexpr):
    """acc[64, BLOCK_N] over the root mean square of the tokens whose squares are given."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    factor = gl.rsqrt(gl.sum(sums, 1) / K + eps)
    return acc * gl.convert_layout(factor, gl.SliceLayout(1, layout))[:, None]
