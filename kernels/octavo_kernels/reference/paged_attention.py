"""Causal attention over paged keys and values: the oracle of the GPU kernels and the CPU path.

Rows that decode go through in one batched product over their gathered pages; other rows one by one.
Products of 16-bit operands accumulate in float32, and the softmax is float32.
"""

import torch
from torch.nn import functional

from octavo_kernels.metadata import AttentionMetadata


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    num_decodes = metadata.num_decode_rows
    if num_decodes:
        out[:num_decodes] = _decode(
            q[:num_decodes], k_cache, v_cache, metadata, scale, window, softcap, sinks
        )
    first = num_decodes
    for row in range(num_decodes, metadata.num_rows):
        last = first + metadata.query_lens_host[row]
        if metadata.seq_lens_host[row] and last > first:
            out[first:last] = _prefill(
                q[first:last], k_cache, v_cache, metadata, row, scale, window, softcap, sinks
            )
        first = last
    return out


def _decode(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q[N, Hq, D], one query for each of the first N rows -> [N, Hq, D]."""
    num_rows, num_q_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    seq_lens = metadata.seq_lens[:num_rows].long()
    max_len = max(metadata.seq_lens_host[:num_rows])
    if window is None or window >= max_len:
        num_blocks = -(-max_len // block_size)
        blocks = metadata.block_table[:num_rows, :num_blocks].long()
        first_positions = torch.zeros_like(seq_lens)
    else:
        # The pages that can hold a visible key, from the page of the oldest one on.
        num_blocks = min(-(-window // block_size) + 1, metadata.block_table.shape[1])
        first_blocks = (seq_lens - window).clamp(min=0) // block_size
        block_idx = first_blocks[:, None] + torch.arange(num_blocks, device=q.device)
        last_idx = metadata.block_table.shape[1] - 1
        blocks = metadata.block_table[:num_rows].long().gather(1, block_idx.clamp(max=last_idx))
        first_positions = first_blocks * block_size
    keys = _gather(k_cache, blocks)
    values = _gather(v_cache, blocks)
    positions = first_positions[:, None] + torch.arange(keys.shape[2], device=q.device)
    visible = positions < seq_lens[:, None]
    if window is not None:
        visible &= positions >= seq_lens[:, None] - window
    # The query heads of one KV head stand where a sequence's queries usually do.
    grouped = q.reshape(num_rows, num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    sink_logits = None if sinks is None else sinks.reshape(1, num_kv_heads, -1)
    out = _attend(grouped, keys, values, visible[:, None, None, :], scale, softcap, sink_logits)
    return out.reshape(num_rows, num_q_heads, head_dim)


def _prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    row: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """q[L, Hq, D], the last L queries of a row -> [L, Hq, D]."""
    num_queries, num_q_heads = q.shape[:2]
    num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
    seq_len = metadata.seq_lens_host[row]
    start = seq_len - num_queries
    first_block = 0 if window is None else max(0, start - window + 1) // block_size
    blocks = metadata.block_table[row : row + 1, first_block : -(-seq_len // block_size)].long()
    first_position = first_block * block_size
    num_keys = seq_len - first_position
    keys = _gather(k_cache, blocks)[:, :, :num_keys]
    values = _gather(v_cache, blocks)[:, :, :num_keys]
    group_size = num_q_heads // num_kv_heads
    queries = q.transpose(0, 1).unsqueeze(0)
    if window is None and softcap is None and sinks is None and start == 0:
        out = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True, scale=scale, enable_gqa=group_size > 1
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
    sink_logits = None if sinks is None else sinks.reshape(1, num_q_heads, 1)
    out = _attend(queries, keys, values, visible[None, None], scale, softcap, sink_logits)
    return out[0].transpose(0, 1)


def _gather(cache: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Pages blocks[N, B] of cache[num_blocks, H, size, D] -> [N, H, B * size, D]; copies pages."""
    num_heads, block_size, head_dim = cache.shape[1:]
    num_rows, num_blocks = blocks.shape
    heads = torch.arange(num_heads, device=blocks.device)
    page_heads = (blocks[:, None, :] * num_heads + heads[None, :, None]).reshape(-1)
    pages = cache.view(-1, block_size * head_dim).index_select(0, page_heads)
    return pages.view(num_rows, num_heads, num_blocks * block_size, head_dim)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    scale: float,
    softcap: float | None,
    sink_logits: torch.Tensor | None,
) -> torch.Tensor:
    """q[N, H, L, D], k and v[N, H, S, D]; visible like [N, H, L, S], sink_logits like [N, H, L]."""
    if softcap is None and sink_logits is None:
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=scale)
    scores = (q.float() @ k.float().transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~visible, -torch.inf)
    if sink_logits is None:
        return (scores.softmax(dim=-1) @ v.float()).to(q.dtype)
    sink = sink_logits.float().expand(scores.shape[:-1]).unsqueeze(-1)
    weights = torch.cat([scores, sink], dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ v.float()).to(q.dtype)
