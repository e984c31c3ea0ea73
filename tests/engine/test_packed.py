"""A gated product whose halves are packed for a CPU is the plain one, rounded less often."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from octavo_engine.layers.linear import Build, DenseLinear
from octavo_engine.layers.packed import POST_OPS
from octavo_engine.loading.parts import Part
from octavo_engine.model_config import Activation

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def gate_and_up(dtype: torch.dtype, num_rows: int, size: int, *, has_bias: bool) -> DenseLinear:
    parts = [Part("mlp.gate_proj", num_rows), Part("mlp.up_proj", num_rows)]
    layer = DenseLinear(parts, size, has_bias=has_bias, build=Build(torch.device("cpu"), dtype))
    generator = torch.Generator().manual_seed(3)
    for tensor in (layer.weight, layer.bias):
        if tensor is not None:
            tensor.copy_(torch.randn(tensor.shape, generator=generator))
    return layer


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 16, 33])
@pytest.mark.parametrize(("num_rows", "size"), [(40, 24), (64, 32)])  # of these one fits in tiles
def test_halves_multiply_like_the_whole(
    activation: Activation, has_bias: bool, num_tokens: int, num_rows: int, size: int
) -> None:
    layer = gate_and_up(torch.bfloat16, num_rows, size, has_bias=has_bias)
    x = torch.randn(num_tokens, size, generator=torch.Generator().manual_seed(4)).bfloat16()
    bias = None if layer.bias is None else layer.bias.float()
    gate, up = functional.linear(x.float(), layer.weight.float(), bias).chunk(2, dim=-1)
    exact = ACTIVATIONS[activation](gate) * up
    halves = layer.finish_halves()
    assert halves is not None
    product = halves[0].gated(x, halves[1], activation)
    assert product.dtype == torch.bfloat16
    error = (product.float() - exact).norm() / exact.norm()
    assert error < 4e-3, f"relative RMS error {error:.2e}"


def test_wide_weights_stay_whole() -> None:
    layer = gate_and_up(torch.float32, 40, 24, has_bias=True)
    assert layer.finish_halves() is None
    assert layer.weight.shape == (80, 24)


def test_every_activation_of_a_gate_has_a_name_in_the_library() -> None:
    assert POST_OPS.keys() == ACTIVATIONS.keys()
