"""Scatters this step's keys and values into their pages."""

import torch


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    block_size = k_cache.shape[2]
    kept = slots >= 0
    if not bool(kept.all()):
        k, v, slots = k[kept], v[kept], slots[kept]
    block, offset = slots // block_size, slots % block_size
    k_cache[block, :, offset] = k.to(k_cache.dtype)
    v_cache[block, :, offset] = v.to(v_cache.dtype)
