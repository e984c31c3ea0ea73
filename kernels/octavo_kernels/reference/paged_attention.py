"""Causal attention over paged keys and values: the oracle of the GPU kernels and the CPU path.

Rows that decode go through in one batched product a bucket of like lengths, over their gathered
pages; other rows one by one.
Products of 16-bit operands accumulate in float32, and the softmax is float32.
"""

import torch
from torch.nn import functional

from octavo_kernels.metadata import AttentionMetadata, AttentionRule
from octavo_kernels.reference.decode_plan import PIECE_LEN, DecodeBucket, with_plan


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    rule: AttentionRule,
) -> torch.Tensor:
    num_decodes = metadata.num_decode_rows
    if metadata.decode_plan is None:
        metadata = with_plan(metadata, num_kv_heads=k_cache.shape[1], window=rule.window)
    assert metadata.decode_plan is not None
    buckets = metadata.decode_plan.buckets
    if len(buckets) == 1 and metadata.num_rows == num_decodes:
        return _decode(q, k_cache, v_cache, buckets[0], rule)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    for bucket in buckets:
        rows = slice(bucket.first_row, bucket.last_row)
        out[rows] = _decode(q[rows], k_cache, v_cache, bucket, rule)
    attend_other_rows(q, k_cache, v_cache, metadata, rule, out)
    return out


def attend_other_rows(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    rule: AttentionRule,
    out: torch.Tensor,
) -> None:
    """Writes to out, like q, what rows that do not decode get."""
    first = metadata.num_decode_rows
    for row in range(metadata.num_decode_rows, metadata.num_rows):
        last = first + metadata.query_lens_host[row]
        if metadata.seq_lens_host[row] and last > first:
            out[first:last] = _prefill(q[first:last], k_cache, v_cache, metadata, row, rule)
        first = last


def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    bucket: DecodeBucket,
    rule: AttentionRule,
) -> torch.Tensor:
    """q[N, Hq, D], one query for each row of the bucket -> [N, Hq, D]."""
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads = k_cache.shape[1]
    # The query heads of one KV head stand where a sequence's queries usually do.
    grouped = q.reshape(num_rows, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    shape = (num_rows, num_kv_heads, -1, head_dim)
    keys = _pieces(k_cache, bucket.piece_rows).view(shape)
    values = _pieces(v_cache, bucket.piece_rows).view(shape)
    if rule.scales is not None:
        keys = _from_page(keys, rule.scales.k, q.dtype)
        values = _from_page(values, rule.scales.v, q.dtype)
    sink_logits = None if rule.sinks is None else rule.sinks.reshape(1, num_kv_heads, -1)
    out = _attend(grouped, keys, values, bucket.visible, rule, sink_logits)
    return out.reshape(num_rows, num_q_heads, head_dim)


def _prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    row: int,
    rule: AttentionRule,
) -> torch.Tensor:
    """q[L, Hq, D], the last L queries of a row -> [L, Hq, D]."""
    num_queries, num_q_heads = q.shape[:2]
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    seq_len = metadata.seq_lens_host[row]
    start = seq_len - num_queries
    window = rule.window
    first_block = 0 if window is None else max(0, start - window + 1) // block_size
    blocks = metadata.block_table[row, first_block : -(-seq_len // block_size)].long()
    first_position = first_block * block_size
    num_keys = seq_len - first_position
    keys = _gather(k_cache, blocks)[:, :, :num_keys]
    values = _gather(v_cache, blocks)[:, :, :num_keys]
    if rule.scales is not None:
        keys = _from_page(keys, rule.scales.k, q.dtype)
        values = _from_page(values, rule.scales.v, q.dtype)
    group_size = num_q_heads // num_kv_heads
    queries = q.transpose(0, 1).unsqueeze(0)
    if window is None and rule.softcap is None and rule.sinks is None and start == 0:
        out = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=rule.scale, enable_gqa=group_size > 1
        )
        return out[0].transpose(0, 1)
    query_positions = torch.arange(start, seq_len, device=q.device)[:, None]
    key_positions = torch.arange(first_position, seq_len, device=q.device)[None, :]
    visible = key_positions <= query_positions
    if window is not None:
        visible &= key_positions > query_positions - window
    if group_size > 1:
        keys = keys.repeat_interleave(group_size, dim=1)
        values = values.repeat_interleave(group_size, dim=1)
    sink_logits = None if rule.sinks is None else rule.sinks.reshape(1, num_q_heads, 1)
    out = _attend(queries, keys, values, visible[None, None], rule, sink_logits)
    return out[0].transpose(0, 1)


def _gather(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Pages blocks[B] of cache[num_blocks, H, size, D] -> [1, H, B * size, D]."""
    gathered = _indexable(cache)[blocks].transpose(0, 1).flatten(1, 2).unsqueeze(0)
    return gathered.view(cache.dtype)


def _pieces(cache: torch.Tensor, piece_rows: torch.Tensor) -> torch.Tensor:
    """Pieces of one head each, copied whole: [len(piece_rows), PIECE_LEN * D]."""
    pieces = _indexable(cache).view(-1, PIECE_LEN * cache.shape[3]).index_select(0, piece_rows)
    return pieces.view(cache.dtype)


def _indexable(cache: torch.Tensor) -> torch.Tensor:
    """Numbers of 8 bits as bytes: indexing has no kernels for them."""
    return cache.view(torch.uint8) if cache.dtype.itemsize == 1 else cache


def _from_page(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x[N, Hkv, S, D] of pages in e4m3 as the numbers that they stand for."""
    return (x.float() * scale[:, None, None]).to(dtype)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    rule: AttentionRule,
    sink_logits: torch.Tensor | None,
) -> torch.Tensor:
    """q[N, H, L, D], k and v[N, H, S, D]; visible like [N, H, L, S], sink_logits like [N, H, L]."""
    if rule.softcap is None and sink_logits is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=rule.scale)
    scores = (q.float() @ k.float().transpose(-1, -2)) * rule.scale
    if rule.softcap is not None:
        scores = rule.softcap * torch.tanh(scores / rule.softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sink_logits is None:
        return (scores.softmax(dim=-1) @ v.float()).to(q.dtype)
    sink = sink_logits.float().expand(scores.shape[:-1]).unsqueeze(-1)
    weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ v.float()).to(q.dtype)
