"""What the attention kernels share: page lookup, tiles of keys and values, logits, sinks.

Logits are kept in units of log2, so that exp2 does for exp. All offsets into a cache are int64.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo_kernels.metadata import AttentionRule

# A finite stand-in for minus infinity: the difference of two of them is 0, not NaN.
MASKED = tl.constexpr(-1.0e30)
LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def load_page_ids(table_row, first_key, last_page, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The page of BLOCK_N keys from first_key on, or one page for each where pages are smaller.

    Never reads beyond last_page, so a loop may ask for the block after its last.
    """
    if PAGE >= BLOCK_N:
        return tl.load(table_row + tl.minimum(first_key // PAGE, last_page))
    else:
        key = first_key + tl.arange(0, BLOCK_N)
        return tl.load(table_row + tl.minimum(key // PAGE, last_page))


@triton.jit
def load_tile(
    cache,
    descriptor,
    page,
    first_key,
    num_keys,
    kv_head,
    stride_block,
    stride_head,
    stride_token,
    NUM_KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    USE_TMA: tl.constexpr,
    MASK_KEYS: tl.constexpr,
):
    """[BLOCK_N, BLOCK_D] of keys or values. MASK_KEYS zeroes keys from num_keys on (not by TMA)."""
    if USE_TMA:
        tile = descriptor.load([(page * NUM_KV_HEADS + kv_head) * PAGE + first_key % PAGE, 0])
    else:
        key = tl.arange(0, BLOCK_N)
        dim = tl.arange(0, BLOCK_D)
        if PAGE >= BLOCK_N:
            start = page.to(tl.int64) * stride_block + kv_head * stride_head
            offset = start + (first_key % PAGE + key)[:, None] * stride_token + dim[None, :]
        else:
            start = page.to(tl.int64) * stride_block + kv_head * stride_head
            offset = (start + ((first_key + key) % PAGE) * stride_token)[:, None] + dim[None, :]
        if MASK_KEYS:
            inside = (first_key + key < num_keys)[:, None] & (dim < HEAD_DIM)[None, :]
            tile = tl.load(cache + offset, mask=inside, other=0.0)
        elif BLOCK_D != HEAD_DIM:
            tile = tl.load(cache + offset, mask=(dim < HEAD_DIM)[None, :], other=0.0)
        else:
            tile = tl.load(cache + offset)
    return tile


@triton.jit
def scale_logits(products, scale, softcap, HAS_SOFTCAP: tl.constexpr):
    """q.k -> logits in log2 units. scale: without soft-cap it already holds log2(e)."""
    if HAS_SOFTCAP:
        x = products * (scale / softcap)
        small = tl.exp(-2.0 * tl.abs(x))
        tanh = (1.0 - small) / (1.0 + small)
        return tl.where(x >= 0, tanh, -tanh) * (softcap * LOG2_E)
    else:
        return products * scale


@triton.jit
def narrowed(queries, HAS_SCALES: tl.constexpr):
    """Queries as they meet pages of 8 bits: those become float16 in one instruction, bfloat16 only
    through float32, and float16 holds them exactly."""
    if HAS_SCALES and queries.dtype == tl.bfloat16:
        limit = 65504.0
        return tl.minimum(tl.maximum(queries.to(tl.float32), -limit), limit).to(tl.float16)
    else:
        return queries


@triton.jit
def add_sink(maximum, total, sinks, head, head_mask):
    """Counts one more logit per head in a softmax's running maximum and total.

    Returns (factor for the accumulator, new total).
    """
    sink = tl.load(sinks + head, mask=head_mask, other=MASKED).to(tl.float32) * LOG2_E
    new_maximum = tl.maximum(maximum, sink)
    factor = tl.exp2(maximum - new_maximum)
    return factor, total * factor + tl.exp2(sink - new_maximum)


@triton.jit
def safe_inverse(total):
    """1 / total, and 0 for a row that saw no key."""
    return tl.where(total > 0, 1.0 / tl.where(total > 0, total, 1.0), 0.0)


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(AttentionRule):
    """The rule, and its numbers as the kernels take them."""

    @property
    def kernel_scale(self) -> float:
        """`scale_logits`'s scale: log2(e) is folded in unless a soft-cap comes between."""
        return self.scale if self.softcap is not None else self.scale * LOG2_E.value

    @property
    def kernel_softcap(self) -> float:
        return 1.0 if self.softcap is None else self.softcap


def tile_descriptor(cache: torch.Tensor, block_n: int) -> TensorDescriptor:
    """A cache [num_blocks, Hkv, block_size, D] as rows of D, to be read block_n rows at a time."""
    if not cache.is_contiguous():
        raise ValueError(f"a cache read by TMA must be contiguous, got strides {cache.stride()}")
    return TensorDescriptor.from_tensor(cache.view(-1, cache.shape[-1]), [block_n, cache.shape[-1]])
