"""The one linear-layer interface: how weights are stored, sharded and multiplied.

Layers ask `make_linear` for every matrix they multiply with and use nothing but `LinearLayer`. A
quantised matrix fills the same slots. On a CPU it is dequantised whole by `quantization` and has
its inputs rounded where the checkpoint asks; where there are kernels for it, the classes of
`quantization.products` keep it as it is. Slots take whole matrices and keep the rank's share: rows,
or inputs, of which a product is then a share of the sum over ranks. Knows no model.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.nn import functional

from octavo_engine.layers.packed import PackedMatrix, pack_for_cpu
from octavo_engine.loading.parts import Part, bias_slots, share_into
from octavo_engine.loading.slots import Slot
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.parallel.shares import Share
from octavo_engine.quantization.checkpoint import QuantizedCheckpoint
from octavo_engine.quantization.products import EightBitLinear, PackedLinear, choose_product
from octavo_engine.quantization.rounding import InputRounding
from octavo_kernels.linear_ops import ForNorm, linear_for_norm


@dataclass(frozen=True)
class Build:
    """Where and in what dtype tensors are made. Device `meta` takes no memory: for checks."""

    device: torch.device
    dtype: torch.dtype
    quantization: QuantizedCheckpoint | None = None
    """None: the checkpoint's matrices are in the model's dtype."""
    keeps_quantized: bool = False
    """Whether quantised matrices stay so in memory, for the kernels; else they are dequantised."""
    group: Group = field(default_factory=SoloGroup)
    """The ranks that share the model."""

    def empty(self, *shape: int) -> torch.Tensor:
        return torch.empty(shape, device=self.device, dtype=self.dtype)

    def input_rounding(
        self, modules: Sequence[str], in_features: int, inputs: Share | None = None
    ) -> InputRounding | None:
        """For the modules packed into one product; None: their inputs stay as they are.

        inputs: those of the in_features that this rank has; None: all.
        """
        if self.quantization is None:
            return None
        if inputs is None or self.group.size == 1:
            return self.quantization.input_rounding(modules, self.device)
        return self.quantization.shared_input_rounding(
            modules, self.device, in_features, inputs, self.group
        )

    def keeps_bias(self, inputs: Share | None) -> bool:
        """Whether this rank adds a product's bias: one of those that share its inputs does."""
        return inputs is None or self.group.rank == 0


class LinearLayer(Protocol):
    def slots(self) -> Iterator[Slot]: ...

    def finish(self) -> None:
        """Called once when all slots are filled; may repack the weights."""
        ...

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, the rank's inputs] -> [T, sum of the parts' rows], in x's dtype."""
        ...


def make_linear(
    parts: Sequence[Part],
    in_features: int,
    *,
    has_bias: bool,
    build: Build,
    inputs: Share | None = None,
) -> LinearLayer:
    """in_features: of the whole matrices. inputs: those that this rank has; None: all."""
    if build.keeps_quantized and build.quantization is not None:
        linears = [build.quantization.linear(part.name) for part in parts]
        product = choose_product(linears, build.device)
        first = linears[0]
        if product == "packed":
            return PackedLinear(parts, in_features, has_bias=has_bias, build=build, inputs=inputs)
        if product == "eight_bit" and first is not None and first.inputs is not None:
            return EightBitLinear(
                parts, in_features, first.inputs, has_bias=has_bias, build=build, inputs=inputs
            )
    return DenseLinear(parts, in_features, has_bias=has_bias, build=build, inputs=inputs)


def multiply_for_norm(layer: LinearLayer, x: torch.Tensor) -> ForNorm:
    """layer(x), to be added to the residual by the norm that follows and by nothing else."""
    if isinstance(layer, DenseLinear) and layer.is_plain and layer.bias is None:
        return linear_for_norm(x, layer.weight)
    return layer(x)


def matrix_slot(
    part: Part, in_features: int, target: torch.Tensor, inputs: Share | None = None
) -> Slot:
    """For a product's weight; target: [the rank's rows, the rank's inputs]."""
    write = share_into(target, part.rows, inputs)
    return Slot(f"{part.name}.weight", (part.whole_rows, in_features), write, is_matrix=True)


class DenseLinear:
    """Weights in the model's dtype, parts one below the other."""

    def __init__(
        self,
        parts: Sequence[Part],
        in_features: int,
        *,
        has_bias: bool,
        build: Build,
        inputs: Share | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._in_features = in_features
        self._inputs = inputs
        self._has_bias = has_bias
        num_rows = sum(part.num_rows for part in parts)
        self.weight = build.empty(num_rows, in_features if inputs is None else inputs.size)
        self.bias = build.empty(num_rows) if has_bias and build.keeps_bias(inputs) else None
        self._round = build.input_rounding([part.name for part in parts], in_features, inputs)
        self._packed: PackedMatrix | None = None

    def slots(self) -> Iterator[Slot]:
        if self._round is not None:
            yield from self._round.slots()
        first = 0
        for part in self._parts:
            last = first + part.num_rows
            yield matrix_slot(part, self._in_features, self.weight[first:last], self._inputs)
            first = last
        if self._has_bias:
            yield from bias_slots(self._parts, self.bias)

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
