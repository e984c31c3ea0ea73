"""What a layer does to its inputs before a product; static scales come from the checkpoint."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import structlog
import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.slots import Slot
from octavo_engine.parallel.group import Group
from octavo_engine.parallel.shares import Share
from octavo_engine.quantization.format import TensorInfos
from octavo_engine.quantization.inputs import (
    InputFormat,
    round_dynamic,
    round_static,
    round_to_range,
)

log = structlog.get_logger(__name__)

SCALE_SUFFIXES = ("input_scale", "activation_scale")


class InputRounding(Protocol):
    def slots(self) -> Iterator[Slot]: ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, in_features] -> the same, rounded, in x's dtype."""
        ...


class DynamicRounding:
    def __init__(self, inputs: InputFormat) -> None:
        self._inputs = inputs

    def slots(self) -> Iterator[Slot]:
        yield from ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return round_dynamic(x, self._inputs)


class SharedDynamicRounding:
    """As `DynamicRounding` of whole rows, of which each rank has a share of the inputs: what shares
    a scale may lie on several ranks."""

    def __init__(self, inputs: InputFormat, in_features: int, share: Share, group: Group) -> None:
        """in_features: of whole rows."""
        self._inputs = inputs
        self._group = group
        size = inputs.group_size or in_features
        self._num_groups = -(-in_features // size)
        self._groups = share.take(torch.arange(in_features), 0) // size
        """[inputs of this rank]: which scale each has."""

    def slots(self) -> Iterator[Slot]:
        yield from ()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        values = x.float()
        groups = self._groups.to(x.device).expand_as(values)
        # The largest value and the largest negated one, for one message.
        ends = values.new_full((2, *values.shape[:-1], self._num_groups), -torch.inf)
        for end, wanted in zip(ends, (values, -values), strict=True):
            end.scatter_reduce_(-1, groups, wanted, "amax")
        highest, negated_lowest = self._group.all_reduce_max(ends)
        lowest = -negated_lowest.gather(-1, groups)
        return round_to_range(values, lowest, highest.gather(-1, groups), self._inputs).to(x.dtype)


class StaticRounding:
    """One scale for the modules packed into a product.

    Calibrated on the same inputs, their scales are equal; where they are not, the largest serves
    all, which lets nothing saturate.
    """

    def __init__(
        self,
        inputs: InputFormat,
        modules: Sequence[str],
        infos: TensorInfos,
        device: torch.device,
    ) -> None:
        self._inputs = inputs
        self._modules = tuple(modules)
        self._infos = infos
        self.scale = torch.zeros((), device=device)

    def slots(self) -> Iterator[Slot]:
        for module in self._modules:
            names = [f"{module}.{suffix}" for suffix in SCALE_SUFFIXES]
            name = next((name for name in names if name in self._infos), names[0])
            stored = self._infos.get(name)
            is_single = stored is not None and all(size == 1 for size in stored.shape)
            shape = stored.shape if stored is not None and is_single else (1,)
            yield Slot(name, shape, self._taker(name))

    def _taker(self, name: str) -> Callable[[torch.Tensor], None]:
        def take(tensor: torch.Tensor) -> None:
            value = tensor.float().reshape(()).to(self.scale.device)
            if not bool(torch.isfinite(value)) or float(value) <= 0:
                raise CheckpointError(
                    f"tensor {name!r} is {float(value)}, a scale must be positive"
                )
            if float(self.scale) not in (0.0, float(value)):
                log.warning("input_scales_differ", modules=self._modules, tensor=name)
            torch.maximum(self.scale, value, out=self.scale)

        return take

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return round_static(x, self._inputs, self.scale)
