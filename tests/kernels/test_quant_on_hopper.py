"""The Gluon product with packed weights, alone and fused, against its reference on a Hopper GPU."""

import pytest
import torch
from tests.kernels.quant_case import random_weight

from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    MAX_TILES,
    ONE_TOKEN_PART,
    NormInput,
    NormOutput,
)
from octavo_kernels.quant_ops import can_be_fused, fused_packed_linear
from octavo_kernels.reference.packed_linear import dequantize
from octavo_kernels.reference.skinny_linear import skinny_linear as reference

pytestmark = pytest.mark.gpu

KINDS = ["int4", "int4 with zeros", "fp8", "fp8 in blocks"]


@pytest.fixture(params=[torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def dtype(request, device):
    if device.type == "cpu" or torch.cuda.get_device_capability(device)[0] != 9:
        pytest.skip("Gluon needs a Hopper GPU")  # a GPU test, the only kind that CI skips
    return request.param


def _weight(kind, shape, generator):
    has_groups = kind != "fp8"
    return random_weight(
        kind.split()[0], shape, generator,
        group_size=128 if has_groups else None,
        has_zeros=kind.endswith("zeros"),
        scale_rows=128 if kind.endswith("blocks") else 1,
        scale_dtype=torch.float16 if kind.startswith("int4") else torch.float32,
    )  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("num_tokens", "shape"),
    [(1, (256, 512)), (3, (4096, 4096)), (16, (128, 200)), (33, (384, 1536)), (64, (17152, 256)),
     (100, (256, 2304)), (130, (512, 1000)), (600, (1024, 4096))],
)  # fmt: skip
def test_any_number_of_tokens(kind, num_tokens, shape, draw, dtype, generator, assert_close):
    from octavo_kernels.gpu.hopper_packed import can_run, hopper_packed_linear

    weight = _weight(kind, shape, generator)
    assert can_run(weight, dtype)
    x, bias = draw(num_tokens, shape[1]), draw(shape[0])
    exact = x.double() @ dequantize(weight).double().T + bias.double()
    for overlaps in (False, True, True):
        found = hopper_packed_linear(x, weight, bias, overlaps=overlaps)
        # From 64 tokens on weights are rounded after they are scaled, as dequantised ones are.
        assert_close(found, exact, dtype, factor=1.5)
        assert not weight.arrivals.any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 33, 100])
def test_the_gluon_and_the_plain_product_agree(
    kind, num_tokens, draw, dtype, generator, assert_close
):
    from octavo_kernels.gpu.hopper_packed import hopper_packed_linear
    from octavo_kernels.gpu.packed_linear import packed_linear

    weight = _weight(kind, (384, 1536), generator)
    x, bias = draw(num_tokens, 1536), draw(384)
    by_gluon = hopper_packed_linear(x, weight, bias)
    assert_close(by_gluon, packed_linear(x, weight, bias).float(), dtype, factor=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 20, 64])
def test_gate_after_a_norm(kind, num_tokens, draw, dtype, device, generator, assert_close):
    width = 512
    weight = _weight(kind, (640, width), generator)
    assert can_be_fused(weight, dtype, gated=True)
    residual, gamma = draw(num_tokens, width, scale=3.0), draw(width)
    squares = torch.zeros(MAX_TILES, MAX_SKINNY_TOKENS, device=device)
    tiles = residual.float().square().view(num_tokens, -1, 64).sum(dim=-1)
    squares[: tiles.shape[1], :num_tokens] = tiles.T
    norm = NormInput(squares, tiles.shape[1], 1e-5)
    x = (residual.float() * gamma.float()).to(dtype)
    found = fused_packed_linear(x, weight, gated=True, norm=norm)
    expected = reference(x, dequantize(weight), None, gated=True, norm=norm, add=None)
    assert_close(found, expected, dtype, factor=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [256, 512, 1536])
def test_gate_of_one_token_after_a_norm_in_small_parts(
    kind, width, draw, dtype, device, generator, assert_close
):
    weight = _weight(kind, (640, width), generator)
    residual, gamma = draw(1, width, scale=3.0), draw(width)
    num_parts = width // ONE_TOKEN_PART
    squares = torch.full((num_parts + 5, MAX_SKINNY_TOKENS), float("nan"), device=device)
    squares[:num_parts, 0] = residual.float().square().view(num_parts, -1).sum(dim=-1)
    norm = NormInput(squares, num_parts, 1e-5)
    x = (residual.float() * gamma.float()).to(dtype)
    found = fused_packed_linear(x, weight, gated=True, norm=norm)
    expected = reference(x, dequantize(weight), None, gated=True, norm=norm, add=None)
    assert_close(found, expected, dtype, factor=3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_tokens", [1, 16, 40])
def test_residual_and_what_the_next_norm_needs(
    kind, num_tokens, draw, dtype, device, generator, assert_close
):
    weight = _weight(kind, (256, 1024), generator)
    x, residual, gamma = draw(num_tokens, 1024), draw(num_tokens, 256), draw(256)

    def output() -> NormOutput:
        squares = torch.zeros(MAX_TILES, MAX_SKINNY_TOKENS, device=device)
        return NormOutput(residual, gamma, 1.0, torch.empty_like(residual), squares)

    mine, theirs = output(), output()
    found = fused_packed_linear(x, weight, add=mine)
    expected = reference(x, dequantize(weight), None, gated=False, norm=None, add=theirs)
    assert_close(found, expected, dtype, factor=2)
    assert_close(mine.scaled, theirs.scaled, dtype, factor=3)
    torch.testing.assert_close(
        mine.squares[:4, :num_tokens], theirs.squares[:4, :num_tokens], rtol=5e-3, atol=0.02
    )


def test_repeats_are_equal_to_the_last_bit(draw, dtype, generator):
    weight = _weight("int4 with zeros", (4096, 4096), generator)
    x = draw(5, 4096)
    first = fused_packed_linear(x, weight)
    assert all(torch.equal(fused_packed_linear(x, weight), first) for _ in range(20))
