"""Scatters this step's keys and values into their pages."""

import torch

from octavo_kernels.metadata import PAGE_MAX, KVScales


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    cache_rows: torch.Tensor | None = None,
    scales: KVScales | None = None,
) -> None:
    """cache_rows: what `rows_of_slots` makes of the slots, where it is kept for all layers.

    0 is written for what is no finite number: attention adds its mask to the scores and multiplies
    masked values by 0, so what one request leaves in a page would spoil the next one's.
    """
    if cache_rows is None:
        kept = slots >= 0
        if not bool(kept.all()):
            k, v, slots = k[kept], v[kept], slots[kept]
        cache_rows = rows_of_slots(
            slots, num_kv_heads=k_cache.shape[1], block_size=k_cache.shape[2]
        )
    head_dim = k.shape[-1]
    k, v = (x.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0) for x in (k, v))
    if scales is not None:
        k, v = to_page(k, scales.k), to_page(v, scales.v)
        # Indexing has no kernels for numbers of 8 bits.
        k_cache, v_cache = k_cache.view(torch.uint8), v_cache.view(torch.uint8)
    for new, cache in ((k, k_cache), (v, v_cache)):
        rows = cache.view(-1, head_dim)
        rows.index_copy_(0, cache_rows, new.reshape(-1, head_dim).to(cache.dtype))


def to_page(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """x[T, Hkv, D] as pages in e4m3 hold it, as bytes."""
    units = (x.float() / scale[:, None]).clamp(-PAGE_MAX, PAGE_MAX)
    return units.to(torch.float8_e4m3fn).view(torch.uint8)


def rows_of_slots(slots: torch.Tensor, *, num_kv_heads: int, block_size: int) -> torch.Tensor:
    """slots[T], none negative -> [T * num_kv_heads]: where each token's heads go in a cache seen as
    [num_blocks * num_kv_heads * block_size, D]."""
    first_rows = slots // block_size * (num_kv_heads * block_size) + slots % block_size
    heads = torch.arange(num_kv_heads, device=slots.device) * block_size
    return (first_rows[:, None] + heads).reshape(-1)
