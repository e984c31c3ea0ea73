"""A gated product whose halves are packed for a CPU is the plain one, rounded less often."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from octavo_engine.layers.linear import Build, DenseLinear
from octavo_engine.layers.packed import POST_OPS, pack_for_cpu
from octavo_engine.loading.parts import Part
from octavo_engine.model_config import Activation
from octavo_kernels.linear_ops import gated_linear

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


def multiply(layer: DenseLinear, x: torch.Tensor, activation: Activation) -> torch.Tensor:
    """By halves where this CPU multiplies packed 16-bit weights, else as a whole."""
    halves = layer.finish_halves()
    if halves is None:
        return gated_linear(x, layer.weight, layer.bias, activation=activation)
    return halves[0].gated(x, halves[1], activation)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 16, 33])
@pytest.mark.parametrize(("num_rows", "size"), [(40, 24), (64, 32)])  # of these one fits in tiles
def test_gate_and_up_multiply_like_the_whole_in_float32(
    activation: Activation,
    has_bias: bool,
    num_tokens: int,
    num_rows: int,
    size: int,
    dtype: torch.dtype,
) -> None:
    layer = gate_and_up(dtype, num_rows, size, has_bias=has_bias)
    x = torch.randn(num_tokens, size, generator=torch.Generator().manual_seed(4)).to(dtype)
    bias = None if layer.bias is None else layer.bias.float()
    gate, up = functional.linear(x.float(), layer.weight.float(), bias).chunk(2, dim=-1)
    exact = ACTIVATIONS[activation](gate) * up
    product = multiply(layer, x, activation)
    assert product.dtype == dtype
    error = (product.float() - exact).norm() / exact.norm()
    assert error < 6e-3, f"relative RMS error {error:.2e}"


@pytest.mark.parametrize(
    ("dtype", "instructions"),
    [
        (torch.bfloat16, ("avx512_bw", "avx_ne_convert")),
        (torch.float16, ("avx512_fp16", "avx_ne_convert")),
    ],
)
def test_weights_are_packed_where_the_cpu_has_the_instructions(
    dtype: torch.dtype, instructions: tuple[str, ...]
) -> None:
    has = torch.cpu.get_capabilities()
    packed = pack_for_cpu(torch.ones(40, 24, dtype=dtype))
    assert (packed is not None) == any(has.get(name) for name in instructions)


def test_wide_weights_stay_whole() -> None:
    layer = gate_and_up(torch.float32, 40, 24, has_bias=True)
    assert layer.finish_halves() is None
    assert layer.weight.shape == (80, 24)


def test_every_activation_of_a_gate_has_a_name_in_the_library() -> None:
    assert POST_OPS.keys() == ACTIVATIONS.keys()
