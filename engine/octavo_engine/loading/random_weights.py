"""Random numbers in a checkpoint's place, for measuring speed and warming caches without files."""

from collections.abc import Callable, Iterable, Iterator

import torch

from octavo_engine.loading.slots import Slot
from octavo_engine.loading.source import TensorInfo

INITIALIZER_RANGE = 0.02
SEED = 0


class RandomWeights:
    """A weight for every slot: matrices of small normal numbers, ones for what has one dimension,
    so that activations stay in a usual range."""

    def __init__(
        self, slots: Callable[[], Iterable[Slot]], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._slots = slots
        self._device = device
        self._dtype = dtype

    def infos(self) -> dict[str, TensorInfo]:
        return {
            slot.name: TensorInfo(slot.shape, "random weights", slot.dtypes[0])
            for slot in self._slots()
        }

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        generator = torch.Generator(self._device).manual_seed(SEED)
        for slot in self._slots():
            weight = torch.ones(slot.shape, dtype=self._dtype, device=self._device)
            if weight.dim() > 1:
                weight.normal_(0, INITIALIZER_RANGE, generator=generator)
            yield slot.name, weight


class NoWeights:
    """The source of a folder that holds a config alone."""

    def infos(self) -> dict[str, TensorInfo]:
        return {}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ()
