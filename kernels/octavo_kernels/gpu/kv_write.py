"""Scatters this step's keys and values into their pages."""

import torch
import triton
import triton.language as tl


@triton.jit
def _kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_stride_token,
    k_stride_head,
    v_stride_token,
    v_stride_head,
    cache_stride_block,
    cache_stride_head,
    cache_stride_token,
    BLOCK_SIZE: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    if slot >= 0:
        head = tl.arange(0, BLOCK_HEADS)[:, None]
        dim = tl.arange(0, BLOCK_DIM)[None, :]
        inside = (head < NUM_HEADS) & (dim < HEAD_DIM)
        block, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        target = block * cache_stride_block + offset * cache_stride_token
        target += head * cache_stride_head + dim
        key = tl.load(k + token * k_stride_token + head * k_stride_head + dim, mask=inside)
        value = tl.load(v + token * v_stride_token + head * v_stride_head + dim, mask=inside)
        tl.store(k_cache + target, key.to(k_cache.dtype.element_ty), mask=inside)
        tl.store(v_cache + target, value.to(v_cache.dtype.element_ty), mask=inside)


def check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1:
        raise ValueError(
            "k_cache and v_cache need equal strides, the last 1; "
            f"got {k_cache.stride()} and {v_cache.stride()}"
        )


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """k, v[T, Hkv, D], last stride 1; caches [num_blocks, Hkv, block_size, D], equal strides."""
    if not k.shape[0]:
        return
    check_caches(k_cache, v_cache)
    num_tokens, num_heads, head_dim = k.shape
    _kv_write_kernel[(num_tokens,)](
        k,
        v,
        k_cache,
        v_cache,
        slots,
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        k_cache.stride(0),
        k_cache.stride(1),
        k_cache.stride(2),
        BLOCK_SIZE=k_cache.shape[2],
        NUM_HEADS=num_heads,
        HEAD_DIM=head_dim,
        BLOCK_HEADS=triton.next_power_of_2(num_heads),
        BLOCK_DIM=triton.next_power_of_2(head_dim),
    )
