"""The one linear-layer interface: how weights are stored, sharded and multiplied.

Layers ask `make_linear` for every matrix they multiply with and use nothing but `LinearLayer`. A
quantised matrix fills the same slots. On a CPU it is dequantised whole by `quantization` and has
its inputs rounded where the checkpoint asks; where there are kernels for it, the classes of
`quantization.products` keep it as it is. A rank's share is a narrower part with a slot that takes
its rows. Knows no model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from octavo_engine.layers.packed import PackedMatrix, pack_for_cpu
from octavo_engine.loading.slots import Slot, copy_into
from octavo_engine.quantization.checkpoint import QuantizedCheckpoint
from octavo_engine.quantization.products import EightBitLinear, PackedLinear, choose_product
from octavo_engine.quantization.rounding import InputRounding


@dataclass(frozen=True)
class Build:
    """Where and in what dtype tensors are made. Device `meta` takes no memory: for checks."""

    device: torch.device
    dtype: torch.dtype
    quantization: QuantizedCheckpoint | None = None
    """None: the checkpoint's matrices are in the model's dtype."""
    keeps_quantized: bool = False
    """Whether quantised matrices stay so in memory, for the kernels; else they are dequantised."""

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def input_rounding(self, modules: Sequence[str]) -> InputRounding | None:
        """For the modules packed into one product; None: their inputs stay as they are."""
        if self.quantization is None:
            return None
        return self.quantization.input_rounding(modules, self.device)


@dataclass(frozen=True)
class Part:
    """One checkpoint matrix [num_rows, in_features] among those packed into one product."""

    name: str
    num_rows: int


class LinearLayer(Protocol):
    def slots(self) -> Iterator[Slot]: ...

    def finish(self) -> None:
        """Called once when all slots are filled; may repack the weights."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, in_features] -> [T, sum of the parts' rows], in x's dtype."""
        ...


def make_linear(
    parts: Sequence[Part], in_features: int, *, has_bias: bool, build: Build
) -> LinearLayer:
    if build.keeps_quantized and build.quantization is not None:
        linears = [build.quantization.linear(part.name) for part in parts]
        product = choose_product(linears, build.device)
        first = linears[0]
        if product == "packed":
            return PackedLinear(parts, in_features, has_bias=has_bias, build=build)
        if product == "eight_bit" and first is not None and first.inputs is not None:
            return EightBitLinear(parts, in_features, first.inputs, has_bias=has_bias, build=build)
    return DenseLinear(parts, in_features, has_bias=has_bias, build=build)


def matrix_slot(module: str, target: torch.Tensor) -> Slot:
    """For a product's weight; target: [num_rows, in_features]."""
    return Slot(f"{module}.weight", tuple(target.shape), copy_into(target), is_matrix=True)


class DenseLinear:
    """Weights in the model's dtype, parts one below the other."""

    def __init__(
        self, parts: Sequence[Part], in_features: int, *, has_bias: bool, build: Build
    ) -> None:
        self._parts = tuple(parts)
        self._in_features = in_features
        num_rows = sum(part.num_rows for part in parts)
        self.weight = build.empty(num_rows, in_features)
        self.bias = build.empty(num_rows) if has_bias else None
        self._round = build.input_rounding([part.name for part in parts])
        self._packed: PackedMatrix | None = None

    def slots(self) -> Iterator[Slot]:
        if self._round is not None:
            yield from self._round.slots()
        first = 0
        for part in self._parts:
            last = first + part.num_rows
            weight = self.weight[first:last]
            yield matrix_slot(part.name, weight)
            if self.bias is not None:
                bias = self.bias[first:last]
                yield Slot(f"{part.name}.bias", tuple(bias.shape), copy_into(bias))
            first = last

    @property
    def is_plain(self) -> bool:
        """Whether the product is x @ weight.T + bias and nothing else."""
        return self._round is None and self._packed is None

    def finish(self) -> None:
        self._packed = pack_for_cpu(self.weight, self.bias)
        if self._packed is not None:
            self.weight = self.weight.new_empty(0)

    def finish_halves(self) -> tuple[PackedMatrix, PackedMatrix] | None:
        """Instead of `finish`: the upper and the lower half of the rows as products of their own,
        which leaves this layer empty. None where that gains nothing, and nothing has changed."""
        if self._round is not None:
            return None
        biases = (None, None) if self.bias is None else self.bias.chunk(2)
        weights = self.weight.chunk(2)
        halves = [pack_for_cpu(w, bias) for w, bias in zip(weights, biases, strict=True)]
        if halves[0] is None or halves[1] is None:
            return None
        self.weight = self.weight.new_empty(0)
        return halves[0], halves[1]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._round is not None:
            x = self._round(x)
        if self._packed is not None:
            return self._packed(x)
        return functional.linear(x, self.weight, self.bias)
