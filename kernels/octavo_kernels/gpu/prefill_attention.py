"""Attention of tiles of queries over paged keys and values, in plain Triton: any chip, any width.

A program has one tile of the schedule and one query head. Blocks of keys that every query of the
tile sees whole go through a loop without masks.
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
from octavo_kernels.metadata import PREFILL_TILE


@dataclass(frozen=True)
class PrefillConfig:
    block_m: int
    """Queries of a program: divides PREFILL_TILE."""
    block_n: int
    use_tma: bool
    num_warps: int
    num_stages: int


@triton.jit
def _attend(
    queries,
    keys,
    values,
    acc,
    maximum,
    total,
    first_key,
    position,
    window,
    scale,
    softcap,
    BLOCK_N: tl.constexpr,
    MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """One block of keys; position [BLOCK_M] of the queries."""
    products = tl.dot(queries, tl.trans(keys), input_precision="ieee")
    logits = scale_logits(products, scale, softcap, HAS_SOFTCAP)
    if MASK:
        key = first_key + tl.arange(0, BLOCK_N)
        visible = key[None, :] <= position[:, None]
        if HAS_WINDOW:
            visible &= key[None, :] > position[:, None] - window
        logits = tl.where(visible, logits, MASKED)
    new_maximum = tl.maximum(maximum, tl.max(logits, 1))
    weights = tl.exp2(logits - new_maximum[:, None])
    decay = tl.exp2(maximum - new_maximum)
    total = total * decay + tl.sum(weights, 1)
    acc = tl.dot(weights.to(values.dtype), values, acc * decay[:, None], input_precision="ieee")
    return acc, new_maximum, total


@triton.jit
def _attend_range(
    queries,
    acc,
    maximum,
    total,
    begin,
    end,
    num_keys,
    position,
    table_row,
    k_cache,
    v_cache,
    k_descriptor,
    v_descriptor,
    kv_head,
    stride_block,
    stride_head,
    stride_token,
    window,
    scale,
    softcap,
    NUM_KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    USE_TMA: tl.constexpr,
    MASK: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """The blocks of keys of [begin, end); begin is a multiple of BLOCK_N."""
    last_page = tl.maximum(end - 1, 0) // PAGE
    # Page ids come one step ahead: a load that feeds a load halves the pipeline's depth.
    next_page = load_page_ids(table_row, begin, last_page, PAGE, BLOCK_N)
    for first_key in tl.range(begin, end, BLOCK_N):
        page = next_page
        next_page = load_page_ids(table_row, first_key + BLOCK_N, last_page, PAGE, BLOCK_N)
        keys = load_tile(
            k_cache, k_descriptor, page, first_key, num_keys, kv_head, stride_block, stride_head,
            stride_token, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM, BLOCK_D, USE_TMA, False,
        ).to(queries.dtype)  # fmt: skip
        values = load_tile(
            v_cache, v_descriptor, page, first_key, num_keys, kv_head, stride_block, stride_head,
            stride_token, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM, BLOCK_D, USE_TMA, MASK,
        ).to(queries.dtype)  # fmt: skip
        acc, maximum, total = _attend(
            queries, keys, values, acc, maximum, total, first_key, position, window, scale, softcap,
            BLOCK_N, MASK, HAS_WINDOW, HAS_SOFTCAP,
        )  # fmt: skip
    return acc, maximum, total


@triton.jit(do_not_specialize=["table_stride", "window"])
def _prefill_kernel(
    q,
    k_cache,
    v_cache,
    k_descriptor,
    v_descriptor,
    out,
    tiles,
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
    window,
    scale,
    softcap,
    NUM_Q_HEADS: tl.constexpr,
    NUM_KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCKS_IN_TILE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    USE_TMA: tl.constexpr,
    HAS_WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    HAS_SCALES: tl.constexpr,
):
    head = tl.program_id(0) % NUM_Q_HEADS
    block = tl.program_id(0) // NUM_Q_HEADS
    tile = tiles + (block // BLOCKS_IN_TILE) * 4
    # The last block of a tile reads most keys: it goes first, as the longest tile does.
    first_query = (BLOCKS_IN_TILE - 1 - block % BLOCKS_IN_TILE) * BLOCK_M
    num_queries = tl.load(tile + 1) - first_query
    if num_queries > 0:
        first_token = tl.load(tile) + first_query
        first_position = tl.load(tile + 2) + first_query
        table_row = block_table + tl.load(tile + 3).to(tl.int64) * table_stride
        kv_head = head // (NUM_Q_HEADS // NUM_KV_HEADS)
        query = tl.arange(0, BLOCK_M)
        dim = tl.arange(0, BLOCK_D)
        position = first_position + query
        inside = (query < num_queries)[:, None] & (dim < HEAD_DIM)[None, :]
        token = (first_token + query).to(tl.int64)
        q_at = q + (token * q_stride_token)[:, None] + head * q_stride_head + dim[None, :]
        queries = narrowed(tl.load(q_at, mask=inside, other=0.0), HAS_SCALES)
        scale *= load_scale(k_scales, kv_head, True, HAS_SCALES)
        num_keys = first_position + tl.minimum(num_queries, BLOCK_M)
        acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
        maximum = tl.full((BLOCK_M,), MASKED, tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        if HAS_WINDOW:
            masked_from = tl.maximum(first_position - window + 1, 0) // BLOCK_N * BLOCK_N
        else:
            masked_from = (first_position + 1) // BLOCK_N * BLOCK_N
            acc, maximum, total = _attend_range(
                queries, acc, maximum, total, 0, masked_from, num_keys, position, table_row,
                k_cache, v_cache, k_descriptor, v_descriptor, kv_head, stride_block, stride_head,
                stride_token, window, scale, softcap, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM,
                BLOCK_D, USE_TMA, False, HAS_WINDOW, HAS_SOFTCAP,
            )  # fmt: skip
        acc, maximum, total = _attend_range(
            queries, acc, maximum, total, masked_from, num_keys, num_keys, position, table_row,
            k_cache, v_cache, k_descriptor, v_descriptor, kv_head, stride_block, stride_head,
            stride_token, window, scale, softcap, NUM_KV_HEADS, PAGE, BLOCK_N, HEAD_DIM, BLOCK_D,
            USE_TMA, True, HAS_WINDOW, HAS_SOFTCAP,
        )  # fmt: skip
        if HAS_SINKS:
            sink_head = head + tl.zeros((BLOCK_M,), tl.int32)
            factor, total = add_sink(maximum, total, sinks, sink_head, query < num_queries)
            acc *= factor[:, None]
        acc *= safe_inverse(total)[:, None] * load_scale(v_scales, kv_head, True, HAS_SCALES)
        out_at = out + ((token * NUM_Q_HEADS + head) * HEAD_DIM)[:, None] + dim[None, :]
        tl.store(out_at, acc.to(out.dtype.element_ty), mask=inside)


def prefill_config(
    head_dim: int, page_size: int, element_bytes: int, *, tma_possible: bool
) -> PrefillConfig:
    """Measured on an H200 at head_dim 128 in bfloat16; wider heads take less of everything, and so
    do chips without TMA, some of which have 99 KiB of shared memory a core."""
    wide = head_dim * element_bytes > 256
    is_narrow = wide and (element_bytes == 4 or not tma_possible)
    block_n = 32 if is_narrow else 64 if wide or page_size < 128 else 128
    is_power = head_dim & (head_dim - 1) == 0
    return PrefillConfig(
        block_m=64 if wide else PREFILL_TILE,
        block_n=block_n,
        use_tma=tma_possible and is_power and page_size >= block_n,
        num_warps=4 if wide else 8,
        num_stages=2 if wide or (block_n == 128 and not tma_possible) else 3,
    )


def prefill_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    tiles: torch.Tensor,
    block_table: torch.Tensor,
    config: PrefillConfig,
    options: AttentionOptions,
) -> None:
    """Fills the tokens of out[T, Hq, D] (contiguous) that the tiles cover."""
    num_q_heads, (num_kv_heads, page_size, head_dim) = q.shape[1], k_cache.shape[1:]
    blocks_in_tile = PREFILL_TILE // config.block_m
    _prefill_kernel[(tiles.shape[0] * blocks_in_tile * num_q_heads,)](
        q, k_cache, v_cache,
        tile_descriptor(k_cache, config.block_n) if config.use_tma else None,
        tile_descriptor(v_cache, config.block_n) if config.use_tma else None,
        out, tiles, block_table, out if options.sinks is None else options.sinks,
        *scale_pointers(options.scales, q),
        block_table.stride(0), q.stride(0), q.stride(1), *k_cache.stride()[:3],
        options.window or 0,
        options.kernel_scale,
        options.kernel_softcap,
        NUM_Q_HEADS=num_q_heads,
        NUM_KV_HEADS=num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_D=triton.next_power_of_2(head_dim),
        PAGE=page_size,
        BLOCK_M=config.block_m,
        BLOCKS_IN_TILE=blocks_in_tile,
        BLOCK_N=config.block_n,
        USE_TMA=config.use_tma,
        HAS_WINDOW=options.window is not None,
        HAS_SOFTCAP=options.softcap is not None,
        HAS_SINKS=options.sinks is not None,
        HAS_SCALES=options.scales is not None,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )  # fmt: skip
