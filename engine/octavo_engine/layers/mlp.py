"""The gated feed-forward network: gate and up in one product, activation, down.

A rank has some of the inner features; what it returns is its share of the sum over ranks.
"""

from collections.abc import Iterator

import torch

from octavo_engine.layers.linear import Build, DenseLinear, make_linear, multiply_for_norm
from octavo_engine.layers.packed import PackedMatrix
from octavo_engine.loading.parts import Part
from octavo_engine.loading.slots import Slot
from octavo_engine.model_config import ModelConfig
from octavo_engine.parallel.shares import even_share, stacked
from octavo_kernels.linear_ops import ACTIVATIONS, ForNorm, gated_linear


class GatedMLP:
    def __init__(self, name: str, config: ModelConfig, *, build: Build) -> None:
        size = config.intermediate_size
        share = even_share(size, build.group.rank, build.group.size)
        if config.has_packed_gate_up:
            rows = stacked([(share, size), (share, size)])
            parts = [Part(f"{name}.gate_up_proj", 2 * size, rows)]
        else:
            parts = [Part(f"{name}.{kind}_proj", size, share) for kind in ("gate", "up")]
        bias = config.has_mlp_bias
        self.gate_up = make_linear(parts, config.hidden_size, has_bias=bias, build=build)
        self.down = make_linear(
            [Part(f"{name}.down_proj", config.hidden_size)],
            size,
            has_bias=bias,
            build=build,
            inputs=share,
        )
        self._activation = config.activation
        self._activate = ACTIVATIONS[config.activation]
        self._halves: tuple[PackedMatrix, PackedMatrix] | None = None
        norms = config.norms
        self._is_normed_next = (
            norms.before_attention is not None
            and norms.after_mlp is None
            and config.residual_scale == 1.0
            and build.group.size == 1
        )

    def slots(self) -> Iterator[Slot]:
        yield from self.gate_up.slots()
        yield from self.down.slots()

    def finish(self) -> None:
        if isinstance(self.gate_up, DenseLinear):
            self._halves = self.gate_up.finish_halves()
        if self._halves is None:
            self.gate_up.finish()
        self.down.finish()

    def __call__(self, x: torch.Tensor) -> ForNorm:
        """x[T, hidden_size] -> the rank's share of the sum [T, hidden_size]; where nothing but the
        next layer's norm follows, what `linear_for_norm` leaves."""
        if self._halves is not None:
            gate, up = self._halves
            return self.down(gate.gated(x, up, self._activation))
        product = self.gate_up
        if isinstance(product, DenseLinear) and product.is_plain:
            inner = gated_linear(x, product.weight, product.bias, activation=self._activation)
        else:
            inner = self._activate(product(x))
        return multiply_for_norm(self.down, inner) if self._is_normed_next else self.down(inner)
