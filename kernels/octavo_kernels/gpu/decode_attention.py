"""Attention of rows with one query each over paged keys and values, long rows cut into pieces.

A program has one item of the plan and one KV head with all its query heads. The pieces of a row
are merged by the program that finishes last. Two forms of the inner loop: queries first (the heads
of a group padded to 16 rows) and keys first (keys on the 64-row side of the matrix unit), measured
faster for 25 to 127 rows on Hopper.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.attention_parts import (
    MASKED,
    AttentionOptions,
    add_sink,
    load_page_ids,
    load_tile,
    narrowed,
    safe_inverse,
    scale_logits,
    tile_descriptor,
)
from octavo_kernels.gpu.kv_write import load_scale, scale_pointers
from octavo_kernels.gpu.launch import overlap_options, wait_for_previous
from octavo_kernels.gpu.schedule import ITEM_FIELDS, MAX_PIECES, SMALL_BATCH, DecodePlan


@dataclass(frozen=True)
class DecodeConfig:
    block_n: int
    """Keys in a step of the inner loop: divides the plan's alignment."""
    keys_first: bool
    use_tma: bool
    num_warps: int
    num_stages: int


@triton.jit
def _attend(
    queries,
    keys,
    values,
    visible,
    acc,
    maximum,
    total,
    scale,
    softcap,
    KEYS_FIRST: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """One block of keys. KEYS_FIRST: acc is [BLOCK_D, rows]; else [rows, BLOCK_D]."""
    if KEYS_FIRST:
        products = tl.dot(keys, tl.trans(queries), input_precision="ieee")
        logits = scale_logits(products, scale, softcap, HAS_SOFTCAP)
        logits = tl.where(visible[:, None], logits, MASKED)
        new_maximum = tl.maximum(maximum, tl.max(logits, 0))
        weights = tl.exp2(logits - new_maximum[None, :])
        decay = tl.exp2(maximum - new_maximum)
        total = total * decay + tl.sum(weights, 0)
        weights = weights.to(values.dtype)
        acc = tl.dot(tl.trans(values), weights, acc * decay[None, :], input_precision="ieee")
    else:
        products = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        logits = scale_logits(products, scale, softcap, HAS_SOFTCAP)
        logits = tl.where(visible[None, :], logits, MASKED)
        new_maximum = tl.maximum(maximum, tl.max(logits, 1))
        weights = tl.exp2(logits - new_maximum[:, None])
        decay = tl.exp2(maximum - new_maximum)
        total = total * decay + tl.sum(weights, 1)
        weights = weights.to(values.dtype)
        acc = tl.dot(weights, values, acc * decay[:, None], input_precision="ieee")
    return acc, new_maximum, total


@triton.jit
def _merge_pieces(
    partial_out,
    partial_stats,
    out_rows,
    sinks,
    kv_head,
    first_item,
    num_pieces,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    MAX_PIECES: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    """Weighs the pieces of one row and KV head and stores the result. Partials are read past L1."""
    member = tl.arange(0, BLOCK_G)
    in_group = member < GROUP
    dim = tl.arange(0, BLOCK_D)
    piece = tl.arange(0, MAX_PIECES)
    at = ((first_item + piece) * NUM_KV_HEADS + kv_head)[:, None] * (2 * GROUP) + member[None, :]
    inside = (piece < num_pieces)[:, None] & in_group[None, :]
    maxima = tl.load(partial_stats + at, mask=inside, other=MASKED, cache_modifier=".cg")
    totals = tl.load(partial_stats + at + GROUP, mask=inside, other=0.0, cache_modifier=".cg")
    maximum = tl.max(maxima, 0)
    total = tl.sum(totals * tl.exp2(maxima - maximum[None, :]), 0)
    acc = tl.zeros((BLOCK_G, BLOCK_D), tl.float32)
    for start in range(0, num_pieces, AT_ONCE):
        piece_idx = start + tl.arange(0, AT_ONCE)
        item = (first_item + piece_idx) * NUM_KV_HEADS + kv_head
        some = (piece_idx < num_pieces)[:, None] & in_group[None, :]
        stats_at = item[:, None] * (2 * GROUP) + member[None, :]
        part_max = tl.load(partial_stats + stats_at, mask=some, other=MASKED, cache_modifier=".cg")
        weight = tl.exp2(part_max - maximum[None, :])
        out_at = item.to(tl.int64)[:, None, None] * (GROUP * HEAD_DIM)
        out_at += (member * HEAD_DIM)[None, :, None] + dim[None, None, :]
        part_mask = some[:, :, None] & (dim < HEAD_DIM)[None, None, :]
        part = tl.load(partial_out + out_at, mask=part_mask, other=0.0, cache_modifier=".cg")
        acc += tl.sum(part * weight[:, :, None], 0)
    if HAS_SINKS:
        factor, total = add_sink(maximum, total, sinks, kv_head * GROUP + member, in_group)
        acc *= factor[:, None]
    acc *= safe_inverse(total)[:, None]
    target = out_rows + (member * HEAD_DIM)[:, None] + dim[None, :]
    stored = in_group[:, None] & (dim < HEAD_DIM)[None, :]
    tl.store(target, acc.to(out_rows.dtype.element_ty), mask=stored)


@triton.jit(do_not_specialize=["table_stride"])
def _decode_kernel(
    q,
    k_cache,
    v_cache,
    k_descriptor,
    v_descriptor,
    out,
    partial_out,
    partial_stats,
    arrivals,
    items,
    block_table,
    sinks,
    k_scales,
    v_scales,
    table_stride,
    q_stride_token,
    q_stride_head,
    stride_block,
    stride_head,
    stride_token,
    scale,
    softcap,
    NUM_KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_G: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_R: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    KEYS_FIRST: tl.constexpr,
    USE_TMA: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SCALES: tl.constexpr,
    MAX_PIECES: tl.constexpr,
    MERGE_AT_ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    item = tl.program_id(0) // NUM_KV_HEADS
    kv_head = tl.program_id(0) % NUM_KV_HEADS
    fields = items + item * ITEM_FIELDS
    wait_for_previous(OVERLAP)
    num_pieces = tl.load(fields + 3)
    if num_pieces > 0:
        row = tl.load(fields).to(tl.int64)
        begin = tl.load(fields + 1)
        end = tl.load(fields + 2)
        first_item = tl.load(fields + 4)
        visible_from = tl.load(fields + 5)
        table_row = block_table + row * table_stride
        last_page = tl.maximum(end - 1, 0) // PAGE
        # Page ids come one step ahead: a load that feeds a load halves the pipeline's depth.
        next_page = load_page_ids(table_row, begin, last_page, PAGE, BLOCK_N)

        member = tl.arange(0, BLOCK_R)
        in_group = member < GROUP
        dim = tl.arange(0, BLOCK_D)
        head_mask = in_group[:, None] & (dim < HEAD_DIM)[None, :]
        q_at = q + row * q_stride_token + ((kv_head * GROUP + member) * q_stride_head)[:, None]
        queries = narrowed(tl.load(q_at + dim[None, :], mask=head_mask, other=0.0), HAS_SCALES)
        scale *= load_scale(k_scales, kv_head, True, HAS_SCALES)
        maximum = tl.full((BLOCK_R,), MASKED, tl.float32)
        total = tl.zeros((BLOCK_R,), tl.float32)
        if KEYS_FIRST:
            acc = tl.zeros((BLOCK_D, BLOCK_R), tl.float32)
        else:
            acc = tl.zeros((BLOCK_R, BLOCK_D), tl.float32)

        for first_key in tl.range(begin, end, BLOCK_N):
            page = next_page
            next_page = load_page_ids(table_row, first_key + BLOCK_N, last_page, PAGE, BLOCK_N)
            keys = load_tile(
                k_cache, k_descriptor, page, first_key, end, kv_head, stride_block, stride_head,
                stride_token, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM, BLOCK_D, USE_TMA, False,
            ).to(queries.dtype)  # fmt: skip
            values = load_tile(
                v_cache, v_descriptor, page, first_key, end, kv_head, stride_block, stride_head,
                stride_token, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM, BLOCK_D, USE_TMA, True,
            ).to(queries.dtype)  # fmt: skip
            key = first_key + tl.arange(0, BLOCK_N)
            visible = key < end
            if HAS_WINDOW:
                visible &= key >= visible_from
            acc, maximum, total = _attend(
                queries, keys, values, visible, acc, maximum, total, scale, softcap,
                KEYS_FIRST, HAS_SOFTCAP,
            )  # fmt: skip

        result = tl.trans(acc) if KEYS_FIRST else acc
        result *= load_scale(v_scales, kv_head, True, HAS_SCALES)
        out_rows = out + (row * NUM_KV_HEADS + kv_head) * (GROUP * HEAD_DIM)
        if num_pieces == 1:
            if HAS_SINKS:
                factor, total = add_sink(maximum, total, sinks, kv_head * GROUP + member, in_group)
                result *= factor[:, None]
            result *= safe_inverse(total)[:, None]
            target = out_rows + (member * HEAD_DIM)[:, None] + dim[None, :]
            tl.store(target, result.to(out.dtype.element_ty), mask=head_mask)
        else:
            part = (item * NUM_KV_HEADS + kv_head).to(tl.int64)
            part_rows = partial_out + part * (GROUP * HEAD_DIM) + (member * HEAD_DIM)[:, None]
            tl.store(part_rows + dim[None, :], result, mask=head_mask)
            stats = partial_stats + part * (2 * GROUP) + member
            tl.store(stats, maximum, mask=in_group)
            tl.store(stats + GROUP, total, mask=in_group)
            # All threads have stored before the one that counts this piece in releases.
            tl.debug_barrier()
            counter = arrivals + row * NUM_KV_HEADS + kv_head
            if tl.atomic_add(counter, 1, sem="acq_rel") == num_pieces - 1:
                tl.store(counter, 0)
                _merge_pieces(
                    partial_out, partial_stats, out_rows, sinks, kv_head, first_item, num_pieces,
                    NUM_KV_HEADS, GROUP, BLOCK_G, HEAD_DIM, BLOCK_D, HAS_SINKS, MAX_PIECES,
                    MERGE_AT_ONCE,
                )  # fmt: skip


def decode_config(
    num_rows: int,
    head_dim: int,
    page_size: int,
    element_bytes: int,
    *,
    tma_possible: bool,
    is_narrow: bool = False,
) -> DecodeConfig:
    """Measured on an H200 at head_dim 128 in bfloat16; other widths scale the block of keys.

    element_bytes: of the queries. is_narrow: pages are of 8 bits.
    """
    block_n = 64 if head_dim * element_bytes <= 256 else 32
    is_power = head_dim & (head_dim - 1) == 0
    keys_first = SMALL_BATCH < num_rows < 128 and block_n == 64 and element_bytes == 2
    return DecodeConfig(
        block_n=block_n,
        keys_first=keys_first,
        use_tma=tma_possible and is_power and page_size >= block_n,
        num_warps=4 if keys_first else 2,
        num_stages=4 if is_narrow else 3,
    )


def decode_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    plan: DecodePlan,
    block_table: torch.Tensor,
    config: DecodeConfig,
    options: AttentionOptions,
) -> None:
    """Fills out[:rows] from q[:rows], rows being the plan's; out [T, Hq, D] is contiguous."""
    num_kv_heads, page_size, head_dim = k_cache.shape[1:]
    group = q.shape[1] // num_kv_heads
    num_items = plan.items.shape[0]
    block_d = triton.next_power_of_2(head_dim)
    block_g = triton.next_power_of_2(group)
    partial_shape = (num_items, num_kv_heads, group)
    partial_out = torch.empty(*partial_shape, head_dim, dtype=torch.float32, device=q.device)
    partial_stats = torch.empty(*partial_shape, 2, dtype=torch.float32, device=q.device)
    _decode_kernel[(num_items * num_kv_heads,)](
        q, k_cache, v_cache,
        tile_descriptor(k_cache, config.block_n) if config.use_tma else None,
        tile_descriptor(v_cache, config.block_n) if config.use_tma else None,
        out, partial_out, partial_stats, plan.arrivals, plan.items, block_table,
        out if options.sinks is None else options.sinks, *scale_pointers(options.scales, q),
        block_table.stride(0), q.stride(0), q.stride(1), *k_cache.stride()[:3],
        options.kernel_scale,
        options.kernel_softcap,
        NUM_KV_HEADS=num_kv_heads,
        GROUP=group,
        BLOCK_G=block_g,
        HEAD_DIM=head_dim,
        BLOCK_D=block_d,
        BLOCK_R=max(16, block_g),
        PAGE=page_size,
        BLOCK_N=config.block_n,
        KEYS_FIRST=config.keys_first,
        USE_TMA=config.use_tma,
        HAS_SOFTCAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        HAS_WINDOW=options.window is not None,
        HAS_SCALES=options.scales is not None,
        MAX_PIECES=MAX_PIECES,
        MERGE_AT_ONCE=max(1, 8192 // (block_g * block_d)),
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        **overlap_options(q.device),
    )  # fmt: skip
