"""Puts the pieces that a row's attention was cut into together again."""

import triton
import triton.language as tl

from octavo_kernels.gpu.attention_parts import MASKED, add_sink, safe_inverse


@triton.jit
def merge_pieces(
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
