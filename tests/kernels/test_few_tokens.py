"""Products of 2 to 16 tokens through registers: Hopper's kernel against float32 and plain ones."""

from collections.abc import Callable

import pytest
import torch

from octavo_kernels import few_ops
from octavo_kernels.few_ops import FEW_TILE, MAX_FEW_TOKENS, MIN_FEW_WIDTH, takes_few
from octavo_kernels.gpu.few_tokens import FewConfig, few_config, few_linear
from octavo_kernels.gpu.skinny_linear import skinny_linear
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, MAX_TILES, NormInput, NormOutput
from octavo_kernels.reference.skinny_linear import skinny_linear as reference

Draw = Callable[..., torch.Tensor]
on_hopper = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9,
    reason="Gluon has no interpreter: needs a Hopper GPU",
)


@pytest.fixture
def dtype(dtype_of_16_bits: torch.dtype) -> torch.dtype:
    return dtype_of_16_bits


@pytest.mark.parametrize(
    ("num_tokens", "shape", "on_hopper", "taken"),
    [(2, (6144, 4096), True, True), (16, (4096, 14336), True, True),
     (2, (6144, 4096), False, False), (1, (6144, 4096), True, False),
     (17, (6144, 4096), True, False), (2, (6160, 4096), True, False),
     (2, (6144, 4352), True, False), (2, (6144, 1536), True, False)],
)  # fmt: skip
def test_it_takes_few_tokens_by_whole_tiles_and_steps(
    num_tokens: int, shape: tuple[int, int], on_hopper: bool, taken: bool
) -> None:
    found = takes_few(num_tokens, *shape, is_hopper=on_hopper, taken=range(2, MAX_FEW_TOKENS + 1))
    assert found == taken


def test_what_it_takes_divides_into_the_kernels_tiles_and_steps() -> None:
    for num_tokens in range(2, MAX_FEW_TOKENS + 1):
        for num_weight_rows in (4096, 28672):
            config = few_config(num_tokens, num_weight_rows)
            assert config.rows == FEW_TILE
            assert 512 % config.chunk == 0
            assert config.chunk * config.depth <= MIN_FEW_WIDTH


def test_more_tokens_are_refused() -> None:
    x, weight = torch.zeros(17, 2048), torch.zeros(64, 2048)
    with pytest.raises(ValueError, match="17, 2048"):
        few_ops.few_linear(x, weight)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("width", [2048, 2560, 4096, 14336])
@pytest.mark.parametrize("num_tokens", [1, 2, 7, 8, 9, 16])
def test_a_product_with_a_bias(
    num_tokens, width, overlaps, draw: Draw, dtype, assert_close
) -> None:
    x, weight, bias = draw(num_tokens, width), draw(96, width, scale=width**-0.5), draw(96)
    found = few_linear(x, weight, bias, gated=False, norm=None, add=None, overlaps=overlaps)
    assert_close(found, x.double() @ weight.double().T + bias.double(), dtype)
    again = few_linear(x, weight, bias, gated=False, norm=None, add=None, overlaps=overlaps)
    assert torch.equal(found, again)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize(
    "config",
    [FewConfig(depth=2, max_registers=128), FewConfig(depth=5, max_registers=255),
     FewConfig(rows=32, chunk=256, depth=3), FewConfig(chunk=1024, depth=2, num_warps=8,
                                                       max_registers=128)],
)  # fmt: skip
def test_other_tiles_give_the_same(config: FewConfig, draw: Draw, dtype, assert_close) -> None:
    x, weight = draw(11, 7168), draw(128, 7168, scale=0.01)
    found = few_linear(x, weight, None, gated=False, norm=None, add=None, config=config)
    assert_close(found, x.double() @ weight.double().T, dtype)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("num_tokens", [3, 8, 13])
@pytest.mark.parametrize("gated", [False, True])
def test_between_a_norm_and_a_gate(
    gated, num_tokens, with_bias, draw: Draw, dtype, device, assert_close
) -> None:
    width, num_rows = 4096, 256
    x = draw(num_tokens, width)
    weight = draw(2 * num_rows if gated else num_rows, width, scale=width**-0.5)
    bias = draw(len(weight)) if with_bias else None
    squares = torch.rand(MAX_TILES, MAX_SKINNY_TOKENS, device=device) * 30
    norm = NormInput(squares, 256, 1e-5)
    found = few_linear(x, weight, bias, gated=gated, norm=norm, add=None)
    expected = reference(x, weight, bias, gated=gated, norm=norm, add=None)
    assert_close(found, expected.float(), dtype, factor=2)
    arrivals = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
    plain = skinny_linear(x, weight, bias, gated=gated, norm=norm, add=None, arrivals=arrivals)
    assert_close(plain, expected.float(), dtype, factor=2)


@pytest.mark.gpu
@on_hopper
@pytest.mark.parametrize("num_tokens", [2, 8, 9, 16])
def test_a_residual_and_what_the_next_norm_needs(
    num_tokens, draw: Draw, dtype, device, assert_close
) -> None:
    width, num_rows = 4096, 192
    x, weight = draw(num_tokens, width), draw(num_rows, width, scale=width**-0.5)
    residual, gamma = draw(num_tokens, num_rows), draw(num_rows)

    def output() -> NormOutput:
        squares = torch.full((MAX_TILES, MAX_SKINNY_TOKENS), float("nan"), device=device)
        return NormOutput(residual, gamma, 1.0, torch.empty_like(residual), squares)

    mine, theirs = output(), output()
    found = few_linear(x, weight, None, gated=False, norm=None, add=mine)
    expected = reference(x, weight, None, gated=False, norm=None, add=theirs)
    assert_close(found, expected.float(), dtype, factor=2)
    assert_close(mine.scaled, theirs.scaled.float(), dtype, factor=3)
    rows = few_config(num_tokens, num_rows).rows
    total = mine.squares[: num_rows // rows, :num_tokens].double().sum(0)
    exact = found.double().square().sum(1)
    torch.testing.assert_close(total, exact, rtol=1e-5, atol=0)
