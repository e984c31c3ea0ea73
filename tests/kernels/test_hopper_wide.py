"""Products of many tokens with norm and residual: plain and Hopper kernels, the reference."""

from collections.abc import Callable

import pytest
import torch

from octavo_kernels.gpu import hopper_gated, hopper_wide, wide_rows
from octavo_kernels.linear_ops import NormInput, NormOutput
from octavo_kernels.reference import gated_mul as gated_reference
from octavo_kernels.reference.wide_linear import wide_linear as reference
from octavo_kernels.wide_ops import WIDE_TILE, wide_gated_linear, wide_linear

on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="Gluon has no interpreter: needs a Hopper GPU",
)
Draw = Callable[..., torch.Tensor]
AssertClose = Callable[..., None]
Product = Callable[..., torch.Tensor]
WIDTH = 512
"""As many inputs as the most stages hold: what a launch that overlaps needs."""


def norm_input(residual: torch.Tensor, part_len: int) -> NormInput:
    """Its squares in parts, with room for more tokens."""
    num_tokens, width = residual.shape
    squares = torch.full((width // part_len + 1, num_tokens + 3), float("nan"))
    sums = residual.float().square().view(num_tokens, -1, part_len).sum(dim=-1)
    squares = squares.to(residual.device)
    squares[: width // part_len, :num_tokens] = sums.T
    return NormInput(squares, width // part_len, 1e-5)


def norm_output(residual: torch.Tensor, gamma: torch.Tensor, part_len: int) -> NormOutput:
    num_tokens, num_rows = residual.shape
    squares = torch.empty(
        num_rows // part_len, num_tokens + 2, dtype=torch.float32, device=residual.device
    )
    return NormOutput(residual, gamma, 0.5, torch.empty_like(residual), squares)


def gate_case(
    draw: Draw, num_tokens: int
) -> tuple[torch.Tensor, NormInput, torch.Tensor, torch.Tensor]:
    """(x, its norm, weight of gate and up, the exact product)."""
    residual = draw(num_tokens, WIDTH)
    x, weight = residual * (1 + 0.2 * draw(WIDTH)), draw(4 * WIDE_TILE, WIDTH, scale=WIDTH**-0.5)
    norm = norm_input(residual, WIDE_TILE)
    exact = x.float() @ weight.float().T
    exact *= torch.rsqrt(residual.float().square().mean(dim=1) + 1e-5)[:, None]
    return x, norm, weight, exact


def check_norm(
    product: Product, draw: Draw, assert_close: AssertClose, num_tokens: int, num_rows: int,
    part_len: int,
) -> None:  # fmt: skip
    """x is a residual times a norm's weight."""
    residual, weight = draw(num_tokens, WIDTH), draw(num_rows, WIDTH, scale=WIDTH**-0.5)
    x = residual * (1 + 0.2 * draw(WIDTH))
    norm = norm_input(residual, part_len)
    exact = x.float() @ weight.float().T
    exact *= torch.rsqrt(residual.float().square().mean(dim=1) + 1e-5)[:, None]
    # The plain kernel scales a product that was rounded before.
    assert_close(product(x, weight, norm=norm, add=None), exact, x.dtype, 2.0)


def check_sum(
    product: Product, draw: Draw, assert_close: AssertClose, num_tokens: int, num_rows: int,
    part_len: int,
) -> None:  # fmt: skip
    x, weight = draw(num_tokens, WIDTH), draw(num_rows, WIDTH, scale=WIDTH**-0.5)
    residual, gamma = draw(num_tokens, num_rows), draw(num_rows)
    add = norm_output(residual, gamma, part_len)
    total = product(x, weight, norm=None, add=add)
    exact = x.float() @ weight.float().T + residual.float()
    # The product, then its sum with the residual.
    assert_close(total, exact, x.dtype, 2.0)
    assert_close(add.scaled, total.float() * (gamma.float() + 0.5), x.dtype)
    squares = total.float().square().view(num_tokens, -1, part_len).sum(dim=-1)
    assert_close(add.squares[:, :num_tokens], squares.T, torch.float32)
    assert not add.squares[:, num_tokens:].isfinite().any()


@pytest.mark.parametrize("check", [check_norm, check_sum])
@pytest.mark.parametrize("product", [wide_rows.wide_linear, reference, wide_linear])
@pytest.mark.parametrize("num_tokens", [1, 5])
def test_norms_and_sums_around_a_product(
    check: Callable[..., None], product: Product, num_tokens: int, draw: Draw,
    assert_close: AssertClose, dtype: torch.dtype,
) -> None:  # fmt: skip
    if product is wide_linear and dtype == torch.float32:
        with pytest.raises(ValueError, match="cannot multiply"):
            check(product, draw, assert_close, num_tokens, 2 * WIDE_TILE, WIDE_TILE)
        return
    check(product, draw, assert_close, num_tokens, 2 * WIDE_TILE, WIDE_TILE)


@pytest.fixture
def draw_16_bits(
    dtype_of_16_bits: torch.dtype, device: torch.device, generator: torch.Generator
) -> Draw:
    def make(*shape: int, scale: float = 1.0) -> torch.Tensor:
        drawn = torch.randn(shape, generator=generator, device=device) * scale
        return drawn.to(dtype_of_16_bits)

    return make


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_a_gate_behind_a_norm(
    activation: str, draw_16_bits: Draw, assert_close: AssertClose
) -> None:
    x, norm, weight, exact = gate_case(draw_16_bits, 5)
    out = wide_gated_linear(x, weight, activation=activation, norm=norm)
    assert_close(out, getattr(gated_reference, f"{activation}_mul")(exact), x.dtype, 2.5)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("check", [check_norm, check_sum])
@pytest.mark.parametrize("block_n", [64, 128, 256])
@pytest.mark.parametrize("num_tokens", [1, 65, 200, 1061, 8192])
@pytest.mark.parametrize("overlaps", [False, True])
def test_on_hopper_too(
    check: Callable[..., None], block_n: int, num_tokens: int, overlaps: bool,
    draw_16_bits: Draw, assert_close: AssertClose,
) -> None:  # fmt: skip
    def product(
        x: torch.Tensor, weight: torch.Tensor, *, norm: NormInput | None, add: NormOutput | None
    ) -> torch.Tensor:
        def run() -> torch.Tensor:
            return hopper_wide.hopper_wide_linear(
                x, weight, norm=norm, add=add, block_n=block_n, overlaps=overlaps
            )

        out = run()
        assert torch.equal(out, run())  # sums in the same order each time
        return out

    check(product, draw_16_bits, assert_close, num_tokens, 5 * 256, block_n)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("num_tokens", [1, 200, 1061])
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("rows", [64, 128])
def test_a_gate_behind_a_norm_on_hopper(
    num_tokens: int, overlaps: bool, rows: int, draw_16_bits: Draw, assert_close: AssertClose
) -> None:
    x, norm, weight, exact = gate_case(draw_16_bits, num_tokens)
    out = hopper_gated.hopper_gated_linear(
        x, weight, gelu=False, rows=rows, norm=norm, overlaps=overlaps
    )
    assert_close(out, gated_reference.silu_mul(exact), x.dtype, 2.0)
