"""16-bit weights of a CPU in the order that it multiplies from, with what may follow a product done
on its way out.

Two orders: tiles for a CPU's matrix unit (`octavo_kernels.tile_linear`), else oneDNN's own.
functional.linear would reorder a weight at every call: half of the time of a decode step of 16 rows
(measured on AVX512 and AMX). The ops of oneDNN are those that torch's compiler emits. Knows no
layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.model_config import Activation
from octavo_kernels.tile_linear import can_tile, pack_tiles, tile_gated, tile_linear

# oneDNN picks its layout of a packed weight for a number of rows; from 1 to 128 all measured alike.
PACKED_ROWS = 16
POST_OPS: Mapping[Activation, tuple[str, str]] = {
    "silu": ("swish", ""),
    "gelu_tanh": ("gelu", "tanh"),
}
"""oneDNN's names of an activation and of its algorithm."""


@dataclass(frozen=True)
class PackedMatrix:
    """In oneDNN's order."""

    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, in] -> [T, out]."""
        return self._multiply(x, "none", "")

    def gated(self, x: torch.Tensor, up: "PackedMatrix", activation: Activation) -> torch.Tensor:
        """activation(product) * up's product; up is of the same size and in the same order."""
        gates = self._multiply(x, *POST_OPS[activation])
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, gates, up.weight, up.bias, "mul"
        )
        return product

    def _multiply(self, x: torch.Tensor, post_op: str, algorithm: str) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, post_op, [], algorithm
        )
        return product


@dataclass(frozen=True)
class TiledMatrix(PackedMatrix):
    """In tiles; the bias is float32."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return tile_linear(x, self.weight, self.bias)

    def gated(self, x: torch.Tensor, up: PackedMatrix, activation: Activation) -> torch.Tensor:
        assert activation != "clamped_swiglu"
        return tile_gated(x, self.weight, up.weight, self.bias, up.bias, activation=activation)


def pack_for_cpu(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix | None:
    """A [N, K] 16-bit weight in the fastest order; None where that gains nothing."""
    if not weight.is_cpu or weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    if can_tile(weight):
        return TiledMatrix(pack_tiles(weight), None if bias is None else bias.float())
    return pack_for_onednn(weight, bias)


def pack_for_onednn(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix | None:
    """None where this build of PyTorch lacks it, or this CPU the instructions."""
    if not torch.backends.mkldnn.is_available() or not _onednn_multiplies(weight.dtype):
        return None
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return PackedMatrix(packed, bias)


def _onednn_multiplies(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())
