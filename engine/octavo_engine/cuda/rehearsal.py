"""A decoder cut down to the layers that launch every kernel: enough to compile and load them all.

Two layers of each kind stand for the others: a pass begins with a norm that no sum precedes, so the
first layer alone would not do. Knows no kernel; a kind is what a block is made of.
"""

from collections.abc import Hashable
from copy import copy
from dataclasses import dataclass

import torch

from octavo_engine.cuda.fused_decoder import fuse
from octavo_engine.cuda.fused_pass import FusedPass
from octavo_engine.layers.context import LayerCache
from octavo_engine.models.decoder import Decoder

LAYERS_OF_A_KIND = 2


@dataclass(frozen=True)
class Rehearsal:
    """What it computes is of no interest."""

    layer_ids: list[int]
    model: Decoder
    fused: FusedPass | None

    def caches(self, caches: list[LayerCache]) -> list[LayerCache]:
        return [caches[layer_id] for layer_id in self.layer_ids]


def rehearsal_of(decoder: Decoder, *, is_fused: bool) -> Rehearsal:
    layer_ids = layers_to_rehearse(decoder)
    model = copy(decoder)
    model.blocks = [decoder.blocks[layer_id] for layer_id in layer_ids]
    return Rehearsal(layer_ids, model, fuse(model) if is_fused else None)


def layers_to_rehearse(decoder: Decoder) -> list[int]:
    counts: dict[Hashable, int] = {}
    chosen = []
    memo: dict[int, Hashable] = {}
    for layer_id, block in enumerate(decoder.blocks):
        kind = _kind_of(block, memo)
        counts[kind] = counts.get(kind, 0) + 1
        if counts[kind] <= LAYERS_OF_A_KIND:
            chosen.append(layer_id)
    # The last layer computes in a way of its own, on its own group's pages.
    last_id = len(decoder.blocks) - 1
    if _kind_of(decoder.blocks[chosen[-1]], memo) != _kind_of(decoder.blocks[last_id], memo):
        chosen.append(last_id)
    return chosen


def _kind_of(part: object, memo: dict[int, Hashable]) -> Hashable:
    """Equal for parts that differ in names and in the numbers of their tensors alone. What it
    cannot look into is a kind of its own: a layer too many costs milliseconds.

    memo: of parts by their id, all of which the decoder keeps."""
    if isinstance(part, torch.Tensor):
        is_aligned = part.data_ptr() % 16 == 0
        return part.shape, part.stride(), part.dtype, is_aligned
    if isinstance(part, str):
        return str
    if part is None or isinstance(part, int | float):
        return part
    if id(part) not in memo:
        memo[id(part)] = _kind_of_parts(part, memo)
    return memo[id(part)]


def _kind_of_parts(whole: object, memo: dict[int, Hashable]) -> Hashable:
    if isinstance(whole, list | tuple):
        return tuple(_kind_of(part, memo) for part in whole)
    if isinstance(whole, slice):
        return whole.start, whole.stop, whole.step
    if type(whole).__module__.startswith("octavo_") and hasattr(whole, "__dict__"):
        return type(whole), tuple(
            (name, _kind_of(part, memo)) for name, part in vars(whole).items()
        )
    return whole if isinstance(whole, Hashable) else id(whole)
