"""Scatters this step's keys and values into their pages."""

import torch
import triton
import triton.language as tl

from octavo_kernels.metadata import PAGE_MAX, KVScales

_PAGE_MAX = tl.constexpr(PAGE_MAX)


@triton.jit
def to_page(x, scale, page_type: tl.constexpr, HAS_SCALES: tl.constexpr):
    """x as pages store it, in units of the scale and saturated where they have one."""
    if HAS_SCALES:
        x = tl.div_rn(x.to(tl.float32), scale)
        x = tl.minimum(tl.maximum(x, -_PAGE_MAX), _PAGE_MAX)
    return x.to(page_type)


@triton.jit
def value_to_page(x, scale, page_type: tl.constexpr, HAS_SCALES: tl.constexpr):
    """As `to_page`; 0 for what is no finite number. A masked key's score is replaced, but its value
    is multiplied by 0: what one request leaves in a page must not spoil the next one's."""
    x = tl.where(tl.abs(x.to(tl.float32)) < float("inf"), x, 0.0)
    return to_page(x, scale, page_type, HAS_SCALES)


@triton.jit
def load_scale(scales, head, inside, HAS_SCALES: tl.constexpr):
    """1.0 without scales, whatever they point to."""
    if HAS_SCALES:
        return tl.load(scales + head, mask=inside, other=1.0)
    else:
        return 1.0


@triton.jit
def _kv_write_kernel(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_scales,
    v_scales,
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
    HAS_SCALES: tl.constexpr,
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
        k_scale = load_scale(k_scales, head, head < NUM_HEADS, HAS_SCALES)
        v_scale = load_scale(v_scales, head, head < NUM_HEADS, HAS_SCALES)
        page_type: tl.constexpr = k_cache.dtype.element_ty
        tl.store(k_cache + target, to_page(key, k_scale, page_type, HAS_SCALES), mask=inside)
        value = value_to_page(value, v_scale, page_type, HAS_SCALES)
        tl.store(v_cache + target, value, mask=inside)


def check_caches(k_cache: torch.Tensor, v_cache: torch.Tensor) -> None:
    if k_cache.stride() != v_cache.stride() or k_cache.stride(-1) != 1:
        raise ValueError(
            "k_cache and v_cache need equal strides, the last 1; "
            f"got {k_cache.stride()} and {v_cache.stride()}"
        )


def scale_pointers(
    scales: KVScales | None, other: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """What a kernel is given for the scales of keys and values: without any, some tensor."""
    return (other, other) if scales is None else (scales.k, scales.v)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    scales: KVScales | None = None,
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
        *scale_pointers(scales, slots),
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
        HAS_SCALES=scales is not None,
    )
