"""One token by packed weights, row by row, against the dequantised weight."""

import pytest
import torch
from tests.kernels.quant_case import random_weight

from octavo_kernels.gpu.single_row_packed import SingleRowConfig, single_row_config
from octavo_kernels.gpu.single_row_packed import single_row_packed_linear as kernel
from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    ONE_TOKEN_PART,
    NormInput,
    NormOutput,
    RowNorm,
)
from octavo_kernels.quant_ops import can_be_single_row, single_row_packed_linear
from octavo_kernels.reference.packed_linear import dequantize
from octavo_kernels.reference.packed_linear import single_row_packed_linear as packed_reference
from octavo_kernels.reference.skinny_linear import single_row_linear as reference

# kind, inputs, group size, zero points, rows of a scale
WEIGHTS = [
    ("int4", 1280, 128, False, 1),
    ("int4", 448, 128, True, 1),
    ("int4", 768, 256, True, 1),
    ("int4", 300, None, False, 1),
    ("int4", 512, None, True, 1),
    ("fp8", 640, None, False, 1),
    ("fp8", 448, 128, False, 128),
    ("fp8", 300, 128, False, 1),
]


@pytest.fixture
def dtype(dtype_of_16_bits):
    return dtype_of_16_bits


@pytest.fixture(params=WEIGHTS, ids=lambda w: "-".join(map(str, w)))
def make_weight(request, generator):
    kind, width, group_size, has_zeros, scale_rows = request.param

    def make(num_rows: int):
        return random_weight(
            kind, (num_rows, width), generator, group_size=group_size, has_zeros=has_zeros,
            scale_rows=scale_rows, scale_dtype=torch.float16 if kind == "int4" else torch.float32,
        )  # fmt: skip

    return make


@pytest.mark.parametrize("gated", [False, True])
def test_a_single_row_between_norm_and_residual(gated, make_weight, draw, dtype, assert_close):
    num_rows = 10
    weight = make_weight(2 * num_rows if gated else num_rows)
    x, residual, bias = draw(1, weight.width), draw(1, num_rows), draw(weight.num_rows)
    norm = RowNorm(draw(weight.width), 1.0, 1e-5)
    found = kernel(x, weight, bias, gated=gated, norm=norm, residual=residual)
    plain = dequantize(weight)
    expected = reference(x, plain, bias, gated=gated, norm=norm, residual=residual)
    assert_close(found, expected.float(), dtype, factor=3)


@pytest.mark.parametrize(
    "config",
    [SingleRowConfig(8, 2, 1, overlaps=False), SingleRowConfig(4, 8, 2, overlaps=True)],
    ids=str,
)
def test_any_tile_gives_the_product(config, make_weight, draw, dtype, assert_close):
    """Rows and chunks that the shape does not fill, and a norm without an offset."""
    weight = make_weight(11)
    x, gamma = draw(1, weight.width), draw(weight.width)
    found = kernel(
        x, weight, None, gated=False, norm=RowNorm(gamma, 0.0, 1e-5), residual=None, config=config
    )
    wide = x.double()
    normed = wide * torch.rsqrt(wide.square().mean() + 1e-5) * gamma.double()
    assert_close(found, normed @ dequantize(weight).double().T, dtype, factor=1.5)


@pytest.mark.parametrize("gated", [False, True])
def test_a_norm_that_was_prepared(gated, make_weight, draw, dtype, device, assert_close):
    weight = make_weight(20)
    residual, gamma = draw(1, weight.width, scale=3.0), draw(weight.width)
    num_parts = weight.width // ONE_TOKEN_PART
    squares = torch.full((num_parts + 3, MAX_SKINNY_TOKENS), float("nan"), device=device)
    squares[:num_parts, 0] = residual.float().square().view(num_parts, -1).sum(dim=1)
    x = (residual.float() * gamma.float()).to(dtype)
    norm = NormInput(squares, num_parts, 1e-5)
    found = kernel(x, weight, None, gated=gated, norm=norm, residual=None)
    expected = packed_reference(x, weight, None, gated=gated, norm=norm, residual=None)
    assert_close(found, expected.float(), dtype, factor=3)


@pytest.mark.parametrize("num_rows", [40])
def test_residual_and_what_the_next_norm_needs(
    num_rows, make_weight, draw, dtype, device, assert_close
):
    weight = make_weight(num_rows)
    x, residual, gamma = draw(1, weight.width), draw(1, num_rows), draw(num_rows)
    num_parts = num_rows // ONE_TOKEN_PART

    def output() -> NormOutput:
        squares = torch.zeros(num_parts, MAX_SKINNY_TOKENS, device=device)
        return NormOutput(residual, gamma, 1.0, torch.empty_like(residual), squares)

    mine, theirs = output(), output()
    found = kernel(x, weight, None, gated=False, norm=None, residual=None, add=mine)
    expected = packed_reference(x, weight, None, gated=False, norm=None, residual=None, add=theirs)
    assert_close(found, expected.float(), dtype, factor=3)
    assert_close(mine.scaled, theirs.scaled.float(), dtype, factor=4)
    torch.testing.assert_close(mine.squares, theirs.squares, rtol=1e-2, atol=0.02)


@pytest.mark.parametrize("width", [64, 1024, 4096, 14336, 53248])
@pytest.mark.parametrize("kind", ["int4", "fp8"])
@pytest.mark.parametrize("gated", [False, True])
def test_a_threads_words_fit_its_registers(width, kind, gated, generator):
    weight = random_weight(kind, (2, width), generator, group_size=None)
    config = single_row_config(weight, gated=gated)
    rows = config.block_rows * (2 if gated else 1)
    assert config.block_rows >= 1
    assert rows * config.chunk * 128 / (32 * config.num_warps) <= 256


@pytest.mark.parametrize(
    ("kind", "group_size", "has_zeros", "scale_rows", "fits"),
    [("int4", 128, True, 1, True), ("int4", 64, False, 1, False), ("int4", 128, False, 2, False),
     ("int8", None, False, 1, False), ("fp8", 128, False, 128, True), ("fp8", None, True, 1, False),
     ("fp8", 64, False, 1, False)],
)  # fmt: skip
def test_which_weights_are_taken(kind, group_size, has_zeros, scale_rows, fits, generator):
    weight = random_weight(
        kind, (16, 256), generator, group_size=group_size, has_zeros=has_zeros,
        scale_rows=scale_rows,
    )  # fmt: skip
    assert can_be_single_row(weight) == fits


def test_two_tokens_are_refused(generator, device):
    weight = random_weight("int4", (16, 256), generator, group_size=128)
    with pytest.raises(ValueError, match=r"\(2, 256\) by int4 \[16, 256\]"):
        single_row_packed_linear(torch.zeros(2, 256, device=device), weight)
