"""Products from weights in tiles against the same in float32: by the matrix unit where this CPU has
one, and by the reference."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from octavo_kernels import tile_linear as ops
from octavo_kernels.reference import tile_linear as reference
from octavo_kernels.tile_linear import GateActivation, pack_tiles, tile_gated, tile_linear

Check = Callable[..., None]
BF16 = torch.bfloat16
NUM_COLUMNS, SIZE = 96, 64
ACTIVATIONS: dict[GateActivation, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": functional.silu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
}
NUM_TOKENS = [1, 16, 17, 31, 32, 33, 300]


@pytest.fixture
def cpu() -> torch.Generator:
    return torch.Generator().manual_seed(20261130)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_matches_float32(
    num_tokens: int, has_bias: bool, cpu: torch.Generator, assert_close: Check
) -> None:
    weight = torch.randn(NUM_COLUMNS, SIZE, generator=cpu).to(BF16)
    # Rows of a wider tensor: those of a packed projection.
    x = torch.randn(num_tokens, SIZE + 6, generator=cpu).to(BF16)[:, 3 : SIZE + 3]
    bias = torch.randn(NUM_COLUMNS, generator=cpu) if has_bias else None
    exact = functional.linear(x.float(), weight.float(), bias)
    packed = pack_tiles(weight)
    assert_close(tile_linear(x, packed, bias), exact, BF16)
    assert_close(reference.tile_linear(x, packed, bias), exact, BF16)


@pytest.mark.parametrize("biases", ["none", "both", "up"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
def test_gate_and_up_match_float32(
    num_tokens: int, activation: GateActivation, biases: str, cpu: torch.Generator,
    assert_close: Check,
) -> None:  # fmt: skip
    weights = torch.randn(2, 2 * NUM_COLUMNS, SIZE, generator=cpu).to(BF16)
    x = torch.randn(num_tokens, SIZE, generator=cpu).to(BF16)
    gate_bias, up_bias = torch.randn(2, 2 * NUM_COLUMNS, generator=cpu)
    of_gate = gate_bias if biases == "both" else None
    of_up = None if biases == "none" else up_bias
    gate, up = weights.float()
    gates = ACTIVATIONS[activation](functional.linear(x.float(), gate, of_gate))
    exact = gates * functional.linear(x.float(), up, of_up)
    packed = [pack_tiles(weight) for weight in weights]
    y = tile_gated(x, *packed, of_gate, of_up, activation=activation)
    assert_close(y, exact, BF16)
    assert_close(reference.tile_gated(x, *packed, of_gate, of_up, activation), exact, BF16)


def test_rows_do_not_depend_on_their_neighbours(cpu: torch.Generator) -> None:
    packed = pack_tiles(torch.randn(NUM_COLUMNS, SIZE, generator=cpu).to(BF16))
    x = torch.randn(70, SIZE, generator=cpu).to(BF16)
    alone = torch.cat([tile_linear(row, packed) for row in x.split(1)])
    for num_tokens in (2, 16, 33, 70):
        assert torch.equal(tile_linear(x[:num_tokens], packed), alone[:num_tokens])
        gated = tile_gated(x[:num_tokens], packed, packed, activation="silu")
        assert torch.equal(
            gated[-1:],
            tile_gated(x[num_tokens - 1 : num_tokens], packed, packed, activation="silu"),
        )


def test_a_nan_stays_in_its_row(cpu: torch.Generator) -> None:
    x = torch.randn(20, SIZE, generator=cpu).to(BF16)
    x[3, 5] = torch.nan
    packed = pack_tiles(torch.randn(NUM_COLUMNS, SIZE, generator=cpu).to(BF16))
    y = tile_gated(x, packed, packed, activation="silu")
    assert y[3].isnan().all()
    assert y[[*range(3), *range(4, 20)]].isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    packed = pack_tiles(torch.zeros(NUM_COLUMNS, SIZE, dtype=BF16))
    with pytest.raises(ValueError, match=r"\(1, 32\) by a weight of 96 rows of 64"):
        tile_linear(torch.zeros(1, 32, dtype=BF16), packed)
    half = pack_tiles(torch.zeros(32, SIZE, dtype=BF16))
    with pytest.raises(ValueError, match=r"gate \(3, 2, .* and up \(1, 2, .* differ"):
        tile_gated(torch.zeros(1, SIZE, dtype=BF16), packed, half, activation="silu")


@pytest.mark.parametrize(
    "weight",
    [
        torch.zeros(48, 64, dtype=BF16),
        torch.zeros(64, 48, dtype=BF16),
        torch.zeros(64, 64, dtype=torch.float16),
        torch.zeros(0, 64, dtype=BF16),
    ],
)
def test_weights_that_are_not_tiled(weight: torch.Tensor) -> None:
    assert not ops.can_tile(weight)
