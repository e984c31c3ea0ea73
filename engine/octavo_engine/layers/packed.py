"""16-bit weights in oneDNN's own layout, with what may follow a product done on its way out.

functional.linear reorders a 16-bit weight at every call: half of the time of a decode step of 16
rows (measured on AVX512 and AMX). The ops are those that torch's compiler emits. Knows no layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.model_config import Activation

# oneDNN picks its layout of a packed weight for a number of rows; from 1 to 128 all measured alike.
PACKED_ROWS = 16
POST_OPS: Mapping[Activation, tuple[str, str]] = {
    "silu": ("swish", ""),
    "gelu_tanh": ("gelu", "tanh"),
}
"""oneDNN's names of an activation and of its algorithm."""


@dataclass(frozen=True)
class PackedMatrix:
    weight: torch.Tensor
    bias: torch.Tensor | None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x[T, in] -> [T, out]."""
        return self._multiply(x, "none", "")

    def activated(self, x: torch.Tensor, activation: Activation) -> torch.Tensor:
        """activation(product), rounded once."""
        return self._multiply(x, *POST_OPS[activation])

    def times(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """product * other[T, out], rounded once."""
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(
            x, other, self.weight, self.bias, "mul"
        )
        return product

    def _multiply(self, x: torch.Tensor, post_op: str, algorithm: str) -> torch.Tensor:
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
            x, self.weight, self.bias, post_op, [], algorithm
        )
        return product


def pack_for_cpu(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedMatrix | None:
    """A [N, K] 16-bit weight in oneDNN's own layout; None where that gains nothing."""
    if not weight.is_cpu or weight.dtype not in (torch.bfloat16, torch.float16):
        return None
    if not torch.backends.mkldnn.is_available():
        return None
    if not hasattr(torch.ops.mkldnn, "_reorder_linear_weight"):
        return None
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return PackedMatrix(packed, bias)
