"""Inputs rounded to 8 bits, and their products with 8-bit weights."""

import pytest
import torch
from tests.kernels.quant_case import random_weight

from octavo_kernels.gpu.quantize_tokens import quantize_tokens as quantize_kernel
from octavo_kernels.gpu.scaled_linear import scaled_config
from octavo_kernels.gpu.scaled_linear import scaled_linear as kernel
from octavo_kernels.quant_ops import quantize_tokens, scaled_linear
from octavo_kernels.reference.packed_linear import dequantize
from octavo_kernels.reference.packed_linear import quantize_tokens as quantize_reference
from octavo_kernels.reference.packed_linear import scaled_linear as reference

FP8 = torch.float8_e4m3fn


def _tokens(num_tokens, width, generator):
    return torch.randn(num_tokens, width, generator=generator, device=generator.device).half()


@pytest.mark.parametrize("group_size", [None, 128])
@pytest.mark.parametrize("width", [128, 200, 1000])
@pytest.mark.parametrize("kind", [FP8, torch.int8], ids=["fp8", "int8"])
def test_tokens_are_rounded_as_the_reference_does(kind, width, group_size, generator, device):
    x = _tokens(5, width, generator)
    values, scales = quantize_kernel(x, kind, group_size, None)
    # On a CPU: a GPU's torch divides by a number by multiplying, which rounds twice.
    expected, expected_scales = (
        tensor.to(device) for tensor in quantize_reference(x.cpu(), kind, group_size, None)
    )
    assert torch.equal(scales, expected_scales)
    share_of_equals = (values.float() == expected.float()).float().mean()
    if kind == torch.int8:
        assert share_of_equals == 1
    else:
        # The interpreter loses the carry of a mantissa into its exponent.
        assert share_of_equals > (0.998 if device.type == "cuda" else 0.9)


def test_a_static_scale_saturates(generator, device):
    x = _tokens(3, 256, generator)
    values, scales = quantize_kernel(x, torch.int8, None, torch.tensor(0.005, device=device))
    assert (scales == 0.005).all()
    assert values.float().max() == 127
    assert values.float().min() == -128


def test_a_token_of_zeros_stays_one(device):
    values, scales = quantize_kernel(torch.zeros(2, 128, device=device).half(), FP8, None, None)
    assert not values.float().any()
    assert torch.isfinite(scales).all()


# kind, rows, inputs, group size, rows of a scale, tokens
PRODUCTS = [
    ("fp8", 130, 384, 128, 128, 5),
    ("fp8", 72, 256, 128, 1, 70),
    ("fp8", 72, 200, None, 1, 33),
    ("int8", 80, 200, None, 1, 5),
    ("int8", 64, 2048, None, 1, 3),
    ("int8", 144, 128, None, 1, 70),
]


@pytest.mark.parametrize(
    ("kind", "rows", "width", "group_size", "scale_rows", "num_tokens"), PRODUCTS
)
def test_the_product_of_rounded_tokens(
    kind, rows, width, group_size, scale_rows, num_tokens, generator, device, assert_close
):
    weight = random_weight(
        kind, (rows, width), generator, group_size=group_size, scale_rows=scale_rows
    )
    tokens = quantize_reference(
        _tokens(num_tokens, width, generator), FP8 if kind == "fp8" else torch.int8, group_size,
        None,
    )  # fmt: skip
    bias = torch.randn(rows, generator=generator, device=device).half()
    exact = reference(*tokens, weight, bias, torch.float32)
    # Hopper adds products of fp8 with few bits for up to a whole row.
    factor = 8 if kind == "fp8" and device.type == "cuda" else 1
    assert_close(kernel(*tokens, weight, bias, torch.float16), exact, torch.float16, factor)
    assert not weight.arrivals.any()


def test_few_tokens_and_long_rows_are_split():
    assert scaled_config(1, 4096, 4096, 132, has_groups=False).split_k > 1
    assert scaled_config(256, 4096, 4096, 132, has_groups=False).split_k == 1


def test_the_reference_is_near_the_unrounded_product(generator):
    weight = random_weight("int8", (64, 256), generator, group_size=None)
    x = _tokens(4, 256, generator)
    product = reference(*quantize_reference(x, torch.int8, None, None), weight, None, torch.float32)
    exact = x.float() @ dequantize(weight).T
    assert (product - exact).norm() / exact.norm() < 0.01


def test_what_does_not_fit_together_is_refused(generator, device):
    tokens = quantize_tokens(_tokens(2, 256, generator), FP8)
    grouped = random_weight("fp8", (64, 256), generator, group_size=128)
    with pytest.raises(ValueError, match="1 groups of inputs, the weight has 2"):
        scaled_linear(*tokens, grouped, None, torch.float16)
    nibbles = random_weight("int4", (64, 256), generator, group_size=128)
    with pytest.raises(ValueError, match="int4"):
        scaled_linear(*tokens, nibbles, None, torch.float16)
    with pytest.raises(ValueError, match="64"):
        quantize_tokens(_tokens(2, 256, generator), FP8, group_size=64)
