"""The memory of the pages: tensors on the device, swap space on the host, and block copies.

Which block belongs to whom is `blocks`' affair; here a block id is an index. Block 0 is the null
block: nobody reads it, padding may be written to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from octavo_engine.batch import BlockCopy, KVGroup
from octavo_engine.config import KVCacheDType
from octavo_engine.cuda.transfer import upload
from octavo_engine.layers.context import LayerCache
from octavo_engine.memory_facts import kv_token_bytes
from octavo_kernels import KVScales


@dataclass(frozen=True, kw_only=True)
class PageShape:
    """What one layer stores in one block, for K and again for V."""

    num_kv_heads: int
    block_size: int
    head_dim: int
    dtype: torch.dtype


def stored_shape(shape: PageShape, kv_cache_dtype: KVCacheDType) -> PageShape:
    """shape: in the model's dtype."""
    return replace(shape, dtype=torch.float8_e4m3fn) if kv_cache_dtype == "fp8" else shape


def block_bytes(groups: tuple[KVGroup, ...], shape: PageShape) -> int:
    """Bytes of one block id: K and V of as many layers as a group has."""
    return shape.block_size * kv_token_bytes(
        layers_per_group(groups), shape.num_kv_heads, shape.head_dim, shape.dtype.itemsize
    )


def layers_per_group(groups: tuple[KVGroup, ...]) -> int:
    return max(len(group.layer_ids) for group in groups)


class KVCache:
    """Pages of all layers. The i-th layers of all groups share one pair of tensors, by block id."""

    def __init__(
        self,
        groups: tuple[KVGroup, ...],
        shape: PageShape,
        *,
        num_blocks: int,
        num_host_blocks: int,
        device: torch.device,
        scales: Sequence[KVScales] | None = None,
    ) -> None:
        """scales: for each layer, of pages in e4m3."""
        num_pairs = layers_per_group(groups)
        self._device = [_pair(shape, num_blocks, device) for _ in range(num_pairs)]
        # Not pinned: pages go through a gathered copy, and torch pins powers of two of bytes.
        host = torch.device("cpu")
        self._host = [_pair(shape, num_host_blocks, host) for _ in range(num_pairs)]
        by_layer = {
            layer_id: self._device[idx]
            for group in groups
            for idx, layer_id in enumerate(group.layer_ids)
        }
        self.layers = [
            replace(by_layer[layer_id], scales=None if scales is None else scales[layer_id])
            for layer_id in range(len(by_layer))
        ]

    def copy(self, copies: list[BlockCopy]) -> None:
        _copy(self._device, self._device, copies)

    def swap_out(self, copies: list[BlockCopy]) -> None:
        _copy(self._device, self._host, copies)

    def swap_in(self, copies: list[BlockCopy]) -> None:
        _copy(self._host, self._device, copies)


def _pair(shape: PageShape, num_blocks: int, device: torch.device) -> LayerCache:
    # Zeros, not empty: a masked key's value is multiplied by 0, which must not meet a NaN.
    size = (num_blocks, shape.num_kv_heads, shape.block_size, shape.head_dim)
    k, v = (torch.zeros(size, dtype=shape.dtype, device=device) for _ in range(2))
    return LayerCache(k, v)


def _copy(sources: list[LayerCache], targets: list[LayerCache], copies: list[BlockCopy]) -> None:
    if not copies:
        return
    src = upload(np.array([copy.src for copy in copies]), sources[0].k.device)
    dst = upload(np.array([copy.dst for copy in copies]), targets[0].k.device)
    for source, target in zip(sources, targets, strict=True):
        for from_, to in ((source.k, target.k), (source.v, target.v)):
            if to.dtype.itemsize == 1:
                # Indexing has no kernels for numbers of 8 bits.
                from_, to = from_.view(torch.uint8), to.view(torch.uint8)
            # The host may not read what has not arrived yet: only copies to a GPU need no waiting.
            to[dst] = from_[src].to(to.device, non_blocking=to.is_cuda)
