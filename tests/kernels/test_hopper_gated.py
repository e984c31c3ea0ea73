"""A product with its activation: the Hopper kernel against float32 and the plain kernels."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from octavo_kernels.gpu import gated_mul, hopper_gated
from octavo_kernels.linear_ops import gated_linear
from octavo_kernels.reference import gated_mul as reference

CORES_OF_H200 = 132
on_hopper = pytest.mark.skipif(  # Gluon has no interpreter
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="Gluon has no interpreter: needs a Hopper GPU",
)


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "expected"),
    [
        (64, 14336, False),  # those few go with their norms and sums
        (65, 14336, True),
        (128, 14336, True),
        (128, 7168, False),  # of two ranks: half of the cores would idle
        (256, 7168, True),
        (512, 14336, False),
        (1024, 14336, True),
        (1024, 3072, False),
        (8192, 3072, True),
    ],
)
def test_it_is_taken_where_it_was_faster(num_tokens: int, num_rows: int, expected: bool) -> None:
    assert hopper_gated.pays(num_tokens, num_rows, CORES_OF_H200) is expected


@pytest.mark.parametrize("num_rows", [128, 1536, 3072, 14336])
def test_above_some_number_of_tokens_it_is_always_taken(num_rows: int) -> None:
    """Else a step smaller than the largest could need more memory than was measured."""
    taken = [
        hopper_gated.pays(tokens, num_rows, CORES_OF_H200)
        for tokens in range(hopper_gated.FEW_TOKENS + 1, 20_000)
    ]
    assert taken == sorted(taken)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_elsewhere_the_plain_kernels_do_it(
    activation: str, assert_close: Callable[..., None]
) -> None:
    seeded = torch.Generator().manual_seed(1)
    x, weight = (torch.randn(rows, 64, generator=seeded) for rows in (5, 2 * 96))
    exact = getattr(reference, f"{activation}_mul")(functional.linear(x, weight).double())
    assert_close(gated_linear(x, weight, activation=activation), exact, torch.float32)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize(
    ("num_tokens", "width", "num_rows"),
    [(1, 64, 128), (65, 4096, 14336), (128, 128, 256), (129, 192, 384), (200, 4096, 1536),
     (1000, 64, 17 * 128), (8192, 1024, 3072)],
)  # fmt: skip
def test_on_hopper_it_gives_what_the_plain_kernels_give(
    num_tokens: int, width: int, num_rows: int, activation: str, dtype: torch.dtype,
    device: torch.device, generator: torch.Generator, assert_close: Callable[..., None],
) -> None:  # fmt: skip
    x = torch.randn(num_tokens, width, generator=generator, device=device).to(dtype)
    weight = torch.randn(2 * num_rows, width, generator=generator, device=device)
    weight = (weight * width**-0.5).to(dtype)
    gelu = activation == "gelu_tanh"
    out = hopper_gated.hopper_gated_linear(x, weight, gelu=gelu)
    again = hopper_gated.hopper_gated_linear(x, weight, gelu=gelu)
    assert torch.equal(out, again)
    products = functional.linear(x.float(), weight.float())
    exact = getattr(reference, f"{activation}_mul")(products)
    # Gate and up are rounded before the activation, as the plain kernels have them.
    assert_close(out, exact, dtype, 2.0)
    plain = getattr(gated_mul, f"{activation}_mul")(functional.linear(x, weight))
    assert_close(plain, exact, dtype, 2.0)
