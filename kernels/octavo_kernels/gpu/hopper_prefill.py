"""Attention of tiles of queries on Hopper, in Gluon: one warp loads, two warpgroups compute.

The producer warp copies queries, keys and values to shared memory by TMA, a page at a time,
whatever the page size from 16 up. Each consumer warpgroup has 64 of a tile's 128 queries: it issues
the product for the next block of keys before it uses the values of the last, so that softmax runs
beside matrix work. Blocks go from last to first: the masked ones come first, the rest need no mask.
The plain kernel of `prefill_attention` does the same on any chip; tests hold the two together.
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.gluon_names import REINTERPRET_IS_PUBLIC, block_barrier, copy_in
from octavo_kernels.gpu.hopper_blocks import MASKED, ROWS, attend_first, attend_next
from octavo_kernels.metadata import PREFILL_TILE

BLOCK_N = 128
NUM_STAGES = 2
SLAB = gl.constexpr(64)
"""Columns in a 128-byte row of swizzled shared memory."""
LOG2_E = gl.constexpr(1.4426950408889634)


@gluon.jit
def _tile_at(turn, num_programs, program):
    """The turn-th item of a persistent program: there and back, to mix long and short tiles."""
    return turn * num_programs + (program if turn % 2 == 0 else num_programs - 1 - program)


@gluon.jit
def _copy_block(
    descriptor,
    table_row,
    last_page,
    first_key,
    kv_head,
    barrier,
    buffer,
    NUM_KV_HEADS: gl.constexpr,
    PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr,
    HEAD_DIM: gl.constexpr,
):
    """BLOCK_N keys or values, page by page and slab by slab, into one tile of shared memory."""
    BOX: gl.constexpr = PAGE if PAGE < BLOCK_N else BLOCK_N
    NUM_BOXES: gl.constexpr = BLOCK_N // BOX
    NUM_SLABS: gl.constexpr = HEAD_DIM // SLAB
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    shape: gl.constexpr = [NUM_SLABS * NUM_BOXES, BOX, SLAB]
    if REINTERPRET_IS_PUBLIC:
        boxes = buffer.reinterpret(descriptor.dtype, shape, layout)
    else:
        boxes = buffer._reinterpret(descriptor.dtype, shape, layout)
    # Not static: unrolled by Triton, eight boxes spill the producer's 24 registers under 3.9.
    for box in range(NUM_BOXES):
        page = gl.load(table_row + gl.minimum((first_key + box * BOX) // PAGE, last_page))
        row = (page * NUM_KV_HEADS + kv_head) * PAGE + first_key % PAGE
        for slab in gl.static_range(NUM_SLABS):
            copy_in(descriptor, [row, slab * SLAB], barrier, boxes.index(slab * NUM_BOXES + box))


@gluon.jit
def _producer(
    q_desc, k_desc, v_desc, tiles, block_table, table_stride, num_items, window,
    q_s, k_s, v_s, q_full, q_free, k_full, k_free, v_full, v_free,
    NUM_Q_HEADS: gl.constexpr, NUM_KV_HEADS: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr, HAS_WINDOW: gl.constexpr,
):  # fmt: skip
    num_programs = gl.num_programs(0)
    program = gl.program_id(0)
    step = 0
    turn = 0
    item = program
    while item < num_items:
        tile = tiles + (item // NUM_Q_HEADS) * 4
        head = item % NUM_Q_HEADS
        kv_head = head // (NUM_Q_HEADS // NUM_KV_HEADS)
        token = gl.load(tile)
        num_queries = gl.load(tile + 1)
        position = gl.load(tile + 2)
        table_row = block_table + gl.load(tile + 3).to(gl.int64) * table_stride
        num_blocks = (position + num_queries + BLOCK_N - 1) // BLOCK_N
        last_page = (position + num_queries - 1) // PAGE
        first_block = 0
        if HAS_WINDOW:
            first_block = gl.maximum(position - window + 1, 0) // BLOCK_N
        for consumer in gl.static_range(2):
            mbarrier.wait(q_free.index(consumer), (turn & 1) ^ 1)
            mbarrier.expect(q_full.index(consumer), ROWS * HEAD_DIM * 2)
            copy_in(
                q_desc, [token + consumer * ROWS, head * HEAD_DIM], q_full.index(consumer),
                q_s.index(consumer),
            )  # fmt: skip
        for done in range(num_blocks - first_block):
            first_key = (num_blocks - 1 - done) * BLOCK_N
            stage = step % STAGES
            phase = ((step // STAGES) & 1) ^ 1
            mbarrier.wait(k_free.index(stage), phase)
            mbarrier.expect(k_full.index(stage), BLOCK_N * HEAD_DIM * 2)
            _copy_block(
                k_desc, table_row, last_page, first_key, kv_head, k_full.index(stage),
                k_s.index(stage), NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM,
            )  # fmt: skip
            mbarrier.wait(v_free.index(stage), phase)
            mbarrier.expect(v_full.index(stage), BLOCK_N * HEAD_DIM * 2)
            _copy_block(
                v_desc, table_row, last_page, first_key, kv_head, v_full.index(stage),
                v_s.index(stage), NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM,
            )  # fmt: skip
            step += 1
        turn += 1
        item = _tile_at(turn, num_programs, program)


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, out, tiles, sinks, num_items, window, scale,
    q_s, k_s, v_s, q_full, q_free, k_full, k_free, v_full, v_free,
    NUM_Q_HEADS: gl.constexpr, BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr,
    STAGES: gl.constexpr, HAS_WINDOW: gl.constexpr, HAS_SINKS: gl.constexpr,
):  # fmt: skip
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    store_layout: gl.constexpr = gl.BlockedLayout(
        [1, 8], [256 // HEAD_DIM, HEAD_DIM // 8], [4, 1], [1, 0]
    )
    num_programs = gl.num_programs(0)
    program = gl.program_id(0)
    q = q_s.index(CONSUMER)
    step = 0
    turn = 0
    item = program
    while item < num_items:
        tile = tiles + (item // NUM_Q_HEADS) * 4
        head = item % NUM_Q_HEADS
        token = gl.load(tile)
        num_queries = gl.load(tile + 1)
        first_position = gl.load(tile + 2)
        num_blocks = (first_position + num_queries + BLOCK_N - 1) // BLOCK_N
        first_block = 0
        # Blocks below this one are seen whole by every query of this consumer.
        unmasked = gl.minimum((first_position + CONSUMER * ROWS + 1) // BLOCK_N, num_blocks)
        if HAS_WINDOW:
            first_block = gl.maximum(first_position - window + 1, 0) // BLOCK_N
            unmasked = first_block
        row = CONSUMER * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
        position = first_position + row
        mbarrier.wait(q_full.index(CONSUMER), turn & 1)
        maximum = gl.full([ROWS], MASKED, gl.float32, gl.SliceLayout(1, s_layout))
        total = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout))
        acc = gl.zeros([ROWS, HEAD_DIM], gl.float32, o_layout)
        block = num_blocks - 1
        narrow, maximum, total = attend_first(
            q, k_s, k_full, k_free, step, maximum, total, block * BLOCK_N, position, window, scale,
            HAS_WINDOW, BLOCK_N, STAGES, s_layout, o_layout,
        )  # fmt: skip
        step += 1
        block -= 1
        while block >= unmasked:
            acc, maximum, total, narrow = attend_next(
                q, k_s, v_s, k_full, k_free, v_full, v_free, step, acc, maximum, total, narrow,
                block * BLOCK_N, position, window, scale,
                True, HAS_WINDOW, BLOCK_N, STAGES, s_layout, o_layout,
            )  # fmt: skip
            step += 1
            block -= 1
        for _ in range(first_block, block + 1):
            acc, maximum, total, narrow = attend_next(
                q, k_s, v_s, k_full, k_free, v_full, v_free, step, acc, maximum, total, narrow,
                0, position, window, scale,
                False, HAS_WINDOW, BLOCK_N, STAGES, s_layout, o_layout,
            )  # fmt: skip
            step += 1
        mbarrier.arrive(q_free.index(CONSUMER), count=1)
        last = (step - 1) % STAGES
        mbarrier.wait(v_full.index(last), ((step - 1) // STAGES) & 1)
        acc = warpgroup_mma(narrow, v_s.index(last), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=[acc])
        mbarrier.arrive(v_free.index(last), count=1)
        factor = 1.0 / total
        if HAS_SINKS:
            sink = gl.load(sinks + head).to(gl.float32) * LOG2_E
            new_maximum = gl.maximum(maximum, sink)
            decay = gl.exp2(maximum - new_maximum)
            factor = decay / (total * decay + gl.exp2(sink - new_maximum))
        acc = acc * gl.convert_layout(factor, gl.SliceLayout(1, o_layout))[:, None]
        result = gl.convert_layout(acc.to(out.dtype.element_ty), store_layout)
        out_row = CONSUMER * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, store_layout))
        dim = gl.arange(0, HEAD_DIM, gl.SliceLayout(0, store_layout))
        offset = (token + out_row).to(gl.int64)[:, None] * (NUM_Q_HEADS * HEAD_DIM)
        offset += (head * HEAD_DIM + dim)[None, :]
        gl.store(out + offset, result, mask=(out_row < num_queries)[:, None])
        turn += 1
        item = _tile_at(turn, num_programs, program)


@gluon.jit(do_not_specialize=["table_stride", "num_items", "window"])
def _hopper_prefill_kernel(
    q_desc, k_desc, v_desc, out, tiles, block_table, sinks, table_stride, num_items, window, scale,
    NUM_Q_HEADS: gl.constexpr, NUM_KV_HEADS: gl.constexpr, PAGE: gl.constexpr,
    BLOCK_N: gl.constexpr, HEAD_DIM: gl.constexpr, STAGES: gl.constexpr,
    HAS_WINDOW: gl.constexpr, HAS_SINKS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    barriers: gl.constexpr = mbarrier.MBarrierLayout()
    dtype: gl.constexpr = q_desc.dtype
    q_s = gl.allocate_shared_memory(dtype, [2, ROWS, HEAD_DIM], layout)
    k_s = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], layout)
    v_s = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, HEAD_DIM], layout)
    q_full = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    q_free = gl.allocate_shared_memory(gl.int64, [2, 1], barriers)
    k_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    k_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    v_full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    v_free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], barriers)
    for i in gl.static_range(2):
        mbarrier.init(q_full.index(i), count=1)
        mbarrier.init(q_free.index(i), count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_full.index(stage), count=1)
        mbarrier.init(k_free.index(stage), count=2)
        mbarrier.init(v_full.index(stage), count=1)
        mbarrier.init(v_free.index(stage), count=2)
    fence_async_shared()
    block_barrier()
    gl.warp_specialize(
        [
            (_consumer, (0, out, tiles, sinks, num_items, window, scale, q_s, k_s, v_s, q_full,
                         q_free, k_full, k_free, v_full, v_free, NUM_Q_HEADS, BLOCK_N, HEAD_DIM,
                         STAGES, HAS_WINDOW, HAS_SINKS)),
            (_consumer, (1, out, tiles, sinks, num_items, window, scale, q_s, k_s, v_s, q_full,
                         q_free, k_full, k_free, v_full, v_free, NUM_Q_HEADS, BLOCK_N, HEAD_DIM,
                         STAGES, HAS_WINDOW, HAS_SINKS)),
            (_producer, (q_desc, k_desc, v_desc, tiles, block_table, table_stride, num_items,
                         window, q_s, k_s, v_s, q_full, q_free, k_full, k_free, v_full, v_free,
                         NUM_Q_HEADS, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM, STAGES, HAS_WINDOW)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


def can_run(q: torch.Tensor, k_cache: torch.Tensor, options: AttentionOptions) -> bool:
    """Whether this kernel covers the case: two-byte types, D 64 or 128, no soft-cap."""
    head_dim = q.shape[2]
    return (
        head_dim in (64, 128)
        and q.dtype == k_cache.dtype
        and q.dtype in (torch.bfloat16, torch.float16)
        and options.softcap is None
        and k_cache.is_contiguous()
        and k_cache.shape[2] & (k_cache.shape[2] - 1) == 0
        # One descriptor covers all heads of a token, and TMA wants strides of 16 bytes.
        and q.stride(1) == head_dim
        and q.stride(0) % 8 == 0
        and q.data_ptr() % 16 == 0
    )


def hopper_prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    tiles: torch.Tensor,
    block_table: torch.Tensor,
    options: AttentionOptions,
    num_cores: int,
) -> None:
    """As `prefill_attention.prefill_attention`, for what `can_run` allows; one program a core."""
    num_tokens, num_q_heads, head_dim = q.shape
    num_kv_heads, page_size = k_cache.shape[1:3]
    layout = gl.NVMMASharedLayout(128, 16, 2)
    flat_q = q.as_strided((num_tokens, num_q_heads * head_dim), (q.stride(0), 1))
    q_desc = TensorDescriptor.from_tensor(flat_q, [ROWS.value, head_dim], layout)
    box = [min(page_size, BLOCK_N), SLAB.value]
    k_desc, v_desc = (
        TensorDescriptor.from_tensor(cache.view(-1, head_dim), box, layout)
        for cache in (k_cache, v_cache)
    )
    num_items = tiles.shape[0] * num_q_heads
    assert 2 * ROWS.value == PREFILL_TILE
    _hopper_prefill_kernel[(min(num_cores, num_items),)](
        q_desc, k_desc, v_desc, out, tiles, block_table,
        out if options.sinks is None else options.sinks,
        block_table.stride(0), num_items, options.window or 0, options.kernel_scale,
        NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=num_kv_heads,
        PAGE=page_size,
        BLOCK_N=BLOCK_N,
        HEAD_DIM=head_dim,
        STAGES=NUM_STAGES,
        HAS_WINDOW=options.window is not None,
        HAS_SINKS=options.sinks is not None,
        num_warps=4,
        maxnreg=168,
    )  # fmt: skip
