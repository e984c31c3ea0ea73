"""Products of few tokens with weights ahead of the wait: choices everywhere; on Hopper the kernel
against float32 and against the plain one."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels.gpu import hopper_skinny, skinny_linear
from octavo_kernels.gpu.launch import num_cores
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, MAX_TILES, NormInput, NormOutput
from octavo_kernels.linear_ops import skinny_linear as chosen
from octavo_kernels.reference.skinny_linear import skinny_linear as reference

CORES_OF_H200 = 132
SHAPES = [(6144, 4096), (4096, 4096), (4096, 14336), (3072, 3072), (128, 64), (256, 1088)]
"""Rows and inputs: Llama-3.1-8B's qkv, o and down, o of 3B; one tile of one step, odd steps."""
on_hopper = pytest.mark.skipif(  # Gluon has no interpreter
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="Gluon has no interpreter: needs a Hopper GPU",
)


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "width", "expected"),
    [
        (1, 4096, 4096, False),  # row by row
        (2, 6144, 4096, True),
        (16, 4096, 4096, True),
        (16, 4096, 14336, True),
        (17, 4096, 4096, False),
        (8, 28672, 4096, False),  # more tiles than cores
        (8, 1024, 1024, False),  # too few pieces for most of the cores
    ],
)
def test_it_is_taken_where_it_was_faster(
    num_tokens: int, num_rows: int, width: int, expected: bool
) -> None:
    assert hopper_skinny.pays(num_tokens, num_rows, width, CORES_OF_H200) is expected


@given(st.integers(1, 400), st.integers(1, 500), st.integers(1, 200))
def test_pieces_are_whole_steps_and_find_a_core_each(tiles: int, steps: int, cores: int) -> None:
    num_rows, width = tiles * hopper_skinny.ROWS, steps * hopper_skinny.BLOCK_K.value
    pieces = hopper_skinny.num_pieces(num_rows, width, cores)
    assert steps % pieces == 0
    assert pieces == 1 or tiles * pieces <= cores
    assert pieces == 1 or steps // pieces >= hopper_skinny.MIN_STEPS


@pytest.fixture
def dtype(dtype_of_16_bits: torch.dtype) -> torch.dtype:
    return dtype_of_16_bits


@pytest.fixture
def arrivals(device: torch.device) -> torch.Tensor:
    return torch.zeros(MAX_TILES, dtype=torch.int32, device=device)


def norm_of(x: torch.Tensor) -> NormInput:
    """Of x as the residual, its weight being one."""
    sums = x.float().square().view(len(x), -1, 64).sum(dim=-1)
    squares = torch.full((sums.shape[1], MAX_SKINNY_TOKENS), float("nan"), device=x.device)
    squares[:, : len(x)] = sums.T
    return NormInput(squares, sums.shape[1], 1e-5)


def output(residual: torch.Tensor, gamma: torch.Tensor) -> NormOutput:
    squares = torch.zeros(residual.shape[1] // 64, MAX_SKINNY_TOKENS, device=residual.device)
    return NormOutput(residual, gamma, 1.0, torch.empty_like(residual), squares)


def run(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    arrivals: torch.Tensor,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
) -> torch.Tensor:
    return hopper_skinny.hopper_skinny_linear(
        x, weight, bias, norm=norm, add=add, arrivals=arrivals, num_cores=num_cores(x.device)
    )


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_tokens", [2, 3, 8, 15, 16])
def test_with_a_norm_before_it_and_a_bias(
    num_tokens: int,
    shape: tuple[int, int],
    draw: Callable[..., torch.Tensor],
    dtype: torch.dtype,
    arrivals: torch.Tensor,
    assert_close: Callable[..., None],
) -> None:
    num_rows, width = shape
    x, weight = draw(num_tokens, width), draw(num_rows, width, scale=width**-0.5)
    bias = draw(num_rows)
    exact = reference(x, weight, bias, gated=False, norm=norm_of(x), add=None)
    found = [run(x, weight, bias, arrivals, norm=norm_of(x)) for _ in range(2)]
    assert_close(found[0], exact, dtype, factor=2)
    assert torch.equal(*found)
    assert not arrivals.any()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("num_tokens", [2, 16])
def test_with_the_residual_and_what_the_next_norm_needs(
    num_tokens: int,
    shape: tuple[int, int],
    draw: Callable[..., torch.Tensor],
    dtype: torch.dtype,
    arrivals: torch.Tensor,
    assert_close: Callable[..., None],
) -> None:
    num_rows, width = shape
    x, weight = draw(num_tokens, width), draw(num_rows, width, scale=width**-0.5)
    residual, gamma = draw(num_tokens, num_rows), draw(num_rows)
    mine, theirs = output(residual, gamma), output(residual, gamma)
    found = run(x, weight, None, arrivals, add=mine)
    exact = reference(x, weight, None, gated=False, norm=None, add=theirs)
    assert_close(found, exact, dtype, factor=2)
    assert_close(mine.scaled, theirs.scaled, dtype, factor=3)
    torch.testing.assert_close(
        mine.squares[:, :num_tokens], theirs.squares[:, :num_tokens], rtol=5e-3, atol=0.02
    )
    assert not arrivals.any()


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_gluon_and_the_plain_product_agree(
    shape: tuple[int, int],
    draw: Callable[..., torch.Tensor],
    dtype: torch.dtype,
    arrivals: torch.Tensor,
    assert_close: Callable[..., None],
) -> None:
    num_rows, width = shape
    x, weight = draw(7, width), draw(num_rows, width, scale=width**-0.5)
    plain = skinny_linear.skinny_linear(
        x, weight, None, gated=False, norm=None, add=None, arrivals=arrivals,
        config=skinny_linear.SkinnyConfig(64, 16, 64, 1, 3),
    )  # fmt: skip
    assert_close(run(x, weight, None, arrivals), plain, dtype, factor=2)


@pytest.mark.gpu
@on_hopper
def test_products_that_overlap_each_other_do_not_wait_in_vain(
    draw: Callable[..., torch.Tensor], dtype: torch.dtype, arrivals: torch.Tensor
) -> None:
    """Each starts while the one in front runs, reads what that has left and counts its pieces by
    the same counters."""
    weights = [draw(4096, 4096, scale=4096**-0.5) for _ in range(3)]
    x = draw(8, 4096)
    expected = x
    for weight in weights:
        expected = run(expected, weight, None, arrivals)
        torch.cuda.synchronize()
    for _ in range(20):
        found = x
        for weight in weights:
            found = chosen(found, weight, arrivals=arrivals, overlaps=True)
        assert torch.equal(found, expected)
