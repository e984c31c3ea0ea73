"""Products by a matrix unit, where there is none: float32 from the weight put back in order."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
}


def tile_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return _product(x, weight, bias).to(x.dtype)


def tile_gated(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    gate_bias: torch.Tensor | None,
    up_bias: torch.Tensor | None,
    activation: str,
) -> torch.Tensor:
    gates = ACTIVATIONS[activation](_product(x, gate, gate_bias))
    return (gates * _product(x, up, up_bias)).to(x.dtype)


def _product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    blocks, steps = weight.shape[:2]
    plain = weight.permute(0, 2, 4, 1, 3, 5).reshape(blocks * 32, steps * 32)
    return functional.linear(x.float(), plain.float(), bias)
