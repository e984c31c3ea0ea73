"""Products with packed weights against dequantised ones, at shapes that fill no tile."""

import pytest
import torch
from tests.kernels.quant_case import random_values, random_weight

from octavo_kernels.gpu.packed_linear import choose_split, dequantize
from octavo_kernels.gpu.packed_linear import packed_linear as kernel
from octavo_kernels.gpu.packed_products import MAX_PLAIN_TOKENS
from octavo_kernels.gpu.packed_products import packed_linear as choose_kernel
from octavo_kernels.packed_weight import join_rows, pack_words, spread_scale_rows, unpack_words
from octavo_kernels.quant_ops import packed_linear
from octavo_kernels.reference.packed_linear import dequantize as reference_weight

# kind, rows, inputs, group size, zero points, rows of a scale
WEIGHTS = [
    ("int4", 72, 320, 64, True, 1),
    ("int4", 64, 256, 32, False, 1),
    ("int4", 100, 130, 128, True, 1),
    ("int4", 64, 96, 1, False, 1),
    ("int4", 64, 512, None, False, 1),
    ("int8", 80, 200, 128, True, 1),
    ("int8", 64, 128, None, False, 1),
    ("fp8", 130, 384, 128, False, 128),
    ("fp8", 72, 100, None, False, 1),
]


@pytest.fixture
def dtype(dtype_of_16_bits):
    return dtype_of_16_bits


@pytest.fixture(params=WEIGHTS, ids=lambda w: "-".join(map(str, w)))
def weight(request, generator):
    kind, rows, width, group_size, has_zeros, scale_rows = request.param
    return random_weight(
        kind, (rows, width), generator, group_size=group_size, has_zeros=has_zeros,
        scale_rows=scale_rows,
    )  # fmt: skip


@pytest.mark.parametrize("num_tokens", [1, 17, 70])
def test_the_product_is_that_of_the_dequantised_weight(
    weight, num_tokens, dtype, device, generator, assert_close
):
    x = torch.randn(num_tokens, weight.width, generator=generator, device=device).to(dtype)
    bias = torch.randn(weight.num_rows, generator=generator, device=device).to(dtype)
    exact = x.double() @ reference_weight(weight).to(dtype).double().T + bias.double()
    assert_close(kernel(x, weight, bias), exact, dtype)
    assert_close(kernel(x, weight, None), exact - bias.double(), dtype)
    assert not weight.arrivals.any()


@pytest.mark.parametrize("num_tokens", [MAX_PLAIN_TOKENS, MAX_PLAIN_TOKENS + 1])
def test_many_tokens_are_multiplied_by_the_dequantised_weight(
    num_tokens, dtype, device, generator, assert_close
):
    weight = random_weight("int8", (64, 96), generator, group_size=32)
    x = torch.randn(num_tokens, 96, generator=generator, device=device).to(dtype)
    bias = torch.randn(64, generator=generator, device=device).to(dtype)
    exact = x.double() @ reference_weight(weight).to(dtype).double().T + bias.double()
    # Torch's own product on a CPU rounds before it adds the bias.
    assert_close(choose_kernel(x, weight, bias), exact, dtype, factor=2)


def test_a_weight_is_dequantised_to_the_last_bit(weight, dtype):
    assert torch.equal(dequantize(weight, dtype), reference_weight(weight).to(dtype))


def test_pieces_of_long_rows_are_added_once_and_counters_reset(
    dtype, device, generator, assert_close
):
    weight = random_weight("int4", (64, 2048), generator, group_size=128)
    assert choose_split(1, weight.num_steps, 4) > 1
    x = torch.randn(3, 2048, generator=generator, device=device).to(dtype)
    exact = x.double() @ reference_weight(weight).to(dtype).double().T
    for _ in range(2):
        assert_close(kernel(x, weight, None), exact, dtype)
        assert not weight.arrivals.any()


@pytest.mark.parametrize(("kind", "bits"), [("int4", 4), ("int8", 8), ("fp8", 8)])
def test_unpacking_gives_what_was_packed(kind, bits, generator):
    values = random_values(kind, (40, 300), generator)
    weight = random_weight(kind, (40, 300), generator, group_size=None)
    weight.words.copy_(pack_words(values, bits))
    assert torch.equal(unpack_words(weight), values.float())


@pytest.mark.parametrize("kind", ["int4", "fp8"])
def test_joined_weights_lie_one_below_the_other(kind, generator):
    parts = [
        random_weight(kind, (rows, 256), generator, group_size=128, has_zeros=has_zeros)
        for rows, has_zeros in ((48, kind == "int4"), (16, False))
    ]
    joined = join_rows(parts)
    expected = torch.cat([reference_weight(part) for part in parts])
    assert torch.equal(reference_weight(joined), expected)


def test_joining_ragged_blocks_gives_every_row_its_scale(generator):
    parts = [
        random_weight("fp8", (rows, 256), generator, group_size=128, scale_rows=128)
        for rows in (200, 128)
    ]
    joined = join_rows(parts)
    assert joined.scale_rows == 1
    expected = torch.cat([reference_weight(part) for part in parts])
    assert torch.equal(reference_weight(joined), expected)
    assert torch.equal(reference_weight(spread_scale_rows(parts[0])), reference_weight(parts[0]))


def test_weights_of_different_groups_are_not_joined(generator):
    parts = [random_weight("int4", (16, 256), generator, group_size=size) for size in (64, 128)]
    with pytest.raises(ValueError, match="different layouts"):
        join_rows(parts)


def test_a_wrong_number_of_inputs_is_refused(generator, device):
    weight = random_weight("int4", (64, 256), generator, group_size=128)
    with pytest.raises(ValueError, match="200 inputs, the weight has 256"):
        packed_linear(torch.zeros(1, 200, device=device), weight)
