"""Linear layers whose weights stay quantised in memory: on GPUs, by the kernels for packed weights.

PackedLinear     4- or 8-bit weights, 16-bit inputs
EightBitLinear   8-bit weights; inputs are rounded to 8 bits where that is what the hardware
                 multiplies fastest, and stay as they are, which is finer, for a few tokens
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.parts import Part, bias_slots
from octavo_engine.loading.slots import Slot
from octavo_engine.parallel.shares import Share
from octavo_engine.quantization.format import Packing
from octavo_engine.quantization.inputs import InputFormat
from octavo_engine.quantization.matrix import QuantizedMatrix
from octavo_engine.quantization.rounding import StaticRounding
from octavo_engine.quantization.scheme import LinearScheme
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS
from octavo_kernels.quant_ops import (
    STEP_INPUTS,
    PackedWeight,
    can_be_fused,
    can_be_single_row,
    can_hold,
    join_rows,
    packed_linear,
    quantize_tokens,
    scaled_linear,
)

if TYPE_CHECKING:
    from octavo_engine.layers.linear import Build

Product = Literal["packed", "eight_bit"]
MAX_UNROUNDED_TOKENS = 32
"""Beyond, rounding inputs to 8 bits pays where the product is not fused with what stands around it;
below, memory is what a product waits for."""


def choose_product(linears: Sequence[LinearScheme | None], device: torch.device) -> Product | None:
    """How to multiply by modules packed into one product; None: by their dequantised weights."""
    packings = {None if linear is None else linear.weights.packing for linear in linears}
    if len(packings) != 1:
        return None
    (packing,) = packings
    inputs = {linear.inputs for linear in linears if linear is not None}
    if packing is None or len(inputs) != 1 or not can_hold(packing.kind, device):
        return None
    (rounding,) = inputs
    if rounding is None:
        return "packed"
    return "eight_bit" if _hardware_multiplies(packing, rounding) else None


def _hardware_multiplies(packing: Packing, inputs: InputFormat) -> bool:
    is_same = packing.kind == inputs.kind and packing.group_size == inputs.group_size
    has_groups = packing.group_size is not None
    return (
        is_same
        and packing.is_symmetric
        and inputs.is_symmetric
        and (not has_groups or (packing.kind == "fp8" and packing.group_size == STEP_INPUTS))
    )


class PackedLinear:
    def __init__(
        self,
        parts: Sequence[Part],
        in_features: int,
        *,
        has_bias: bool,
        build: "Build",
        inputs: Share | None = None,
    ) -> None:
        self._parts = tuple(parts)
        self._in_features = in_features
        self._inputs = inputs
        self._build = build
        self._has_bias = has_bias
        num_rows = sum(part.num_rows for part in parts)
        self.bias = build.empty(num_rows) if has_bias and build.keeps_bias(inputs) else None
        self._read: dict[str, tuple[PackedWeight, torch.Tensor | None]] = {}
        self._weights: list[tuple[PackedWeight, torch.Tensor | None]] = []
        """Those that share an order of inputs are one; each with that order."""

    def slots(self) -> Iterator[Slot]:
        for part in self._parts:
            yield Slot(
                f"{part.name}.weight",
                (part.whole_rows, self._in_features),
                self._refuse_plain(part.name),
                is_matrix=True,
                write_quantized=self._taker(part),
            )
        if self._has_bias:
            yield from bias_slots(self._parts, self.bias)

    def _taker(self, part: Part) -> Callable[[QuantizedMatrix], None]:
        def take(matrix: QuantizedMatrix) -> None:
            self._read[part.name] = matrix.share(part.rows, self._inputs).pack()

        return take

    def _refuse_plain(self, name: str) -> Callable[[torch.Tensor], None]:
        def refuse(tensor: torch.Tensor) -> None:
            raise CheckpointError(
                f"module {name!r} is quantised, but came as {tensor.dtype} {list(tensor.shape)}"
            )

        return refuse

    def finish(self) -> None:
        read = [self._read.pop(part.name) for part in self._parts]
        orders = [order for _, order in read]
        if all(_is_same(order, orders[0]) for order in orders):
            self._weights = [(join_rows([weight for weight, _ in read]), orders[0])]
        else:
            self._weights = read
        if self._build.quantization is not None:
            num_bytes = sum(weight.num_bytes for weight, _ in self._weights)
            self._build.quantization.count_packed(num_bytes)

    @property
    def max_fused_tokens(self) -> int:
        """Tokens up to which the product is best fused with what a decoder has around it."""
        return MAX_SKINNY_TOKENS

    def fusable_weight(self, *, gated: bool) -> PackedWeight | None:
        """The whole weight, where `quant_ops.fused_packed_linear` takes it."""
        if len(self._weights) != 1:
            return None
        weight, order = self._weights[0]
        is_fit = order is None and can_be_fused(weight, self._build.dtype, gated=gated)
        return weight if is_fit else None

    def single_row_weight(self) -> PackedWeight | None:
        """The whole weight, where `quant_ops.single_row_packed_linear` takes it."""
        weight = self.fusable_weight(gated=False)
        return weight if weight is not None and can_be_single_row(weight) else None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if len(self._weights) == 1:
            weight, order = self._weights[0]
            return self._multiply(_ordered(x, order), weight, self.bias)
        products = [
            self._multiply(_ordered(x, order), weight, None) for weight, order in self._weights
        ]
        joined = torch.cat(products, dim=-1)
        return joined if self.bias is None else joined.add_(self.bias)

    def _multiply(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return packed_linear(x, weight, bias)


class EightBitLinear(PackedLinear):
    def __init__(
        self,
        parts: Sequence[Part],
        in_features: int,
        rounding: InputFormat,
        *,
        has_bias: bool,
        build: "Build",
        inputs: Share | None = None,
    ) -> None:
        super().__init__(parts, in_features, has_bias=has_bias, build=build, inputs=inputs)
        self._rounding = rounding
        # A rank scales its inputs by themselves, which is finer than by all ranks' together.
        self._round = build.input_rounding([part.name for part in parts], in_features)
        self._dtype = torch.float8_e4m3fn if rounding.kind == "fp8" else torch.int8

    def slots(self) -> Iterator[Slot]:
        if self._round is not None:
            yield from self._round.slots()
        yield from super().slots()

    def _multiply(
        self, x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None
    ) -> torch.Tensor:
        is_few = len(x) <= MAX_UNROUNDED_TOKENS
        if is_few and can_be_fused(weight, x.dtype, gated=False):
            return packed_linear(x, weight, bias)
        scale = self._round.scale if isinstance(self._round, StaticRounding) else None
        values, scales = quantize_tokens(
            x, self._dtype, group_size=self._rounding.group_size, scale=scale
        )
        return scaled_linear(values, scales, weight, bias, x.dtype)


def _is_same(order: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if order is None or other is None:
        return order is other
    return torch.equal(order, other)


def _ordered(x: torch.Tensor, order: torch.Tensor | None) -> torch.Tensor:
    return x if order is None else x.index_select(1, order)
