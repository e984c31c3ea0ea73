"""Scatters this step's keys and values into their pages."""

import torch


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    cache_rows: torch.Tensor | None = None,
) -> None:
    """cache_rows: what `cache_rows` makes of the slots, where it is kept for all layers."""
    if cache_rows is None:
        kept = slots >= 0
        if not bool(kept.all()):
            k, v, slots = k[kept], v[kept], slots[kept]
        cache_rows = rows_of_slots(
            slots, num_kv_heads=k_cache.shape[1], block_size=k_cache.shape[2]
        )
    head_dim = k.shape[-1]
    for new, cache in ((k, k_cache), (v, v_cache)):
        rows = cache.view(-1, head_dim)
        rows.index_copy_(0, cache_rows, new.reshape(-1, head_dim).to(cache.dtype))


def rows_of_slots(slots: torch.Tensor, *, num_kv_heads: int, block_size: int) -> torch.Tensor:
    """slots[T], none negative -> [T * num_kv_heads]: where each token's heads go in a cache seen as
    [num_blocks * num_kv_heads * block_size, D]."""
    first_rows = slots // block_size * (num_kv_heads * block_size) + slots % block_size
    heads = torch.arange(num_kv_heads, device=slots.device) * block_size
    return (first_rows[:, None] + heads).reshape(-1)
