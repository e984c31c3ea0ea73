"""Choices of packed products on Hopper: always legal, and as measured for the shapes of an 8B."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_kernels.gpu.hopper_packed import HALF_BYTES, ROWS, HopperConfig, hopper_config
from octavo_kernels.packed_weight import MAX_TILES, num_steps

SHARED_BYTES = 227 * 1024
"""Of a core, for one program."""
SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
"""Rows and inputs."""
MEASURED = {
    ("qkv", 1): HopperConfig(1, 16, 4, 4),
    ("qkv", 16): HopperConfig(1, 16, 4, 4),
    ("qkv", 32): HopperConfig(1, 32, 2, 6),
    ("qkv", 64): HopperConfig(1, 64, 2, 4),
    ("qkv", 128): HopperConfig(2, 64, 2, 3),
    ("qkv", 512): HopperConfig(2, 128, 1, 2),
    ("o", 1): HopperConfig(1, 16, 4, 4),
    ("o", 16): HopperConfig(1, 16, 4, 4),
    ("o", 32): HopperConfig(1, 32, 4, 6),
    ("o", 64): HopperConfig(1, 64, 4, 4),
    ("o", 128): HopperConfig(2, 64, 4, 3),
    ("o", 512): HopperConfig(2, 128, 2, 2),
    ("gate_up", 1): HopperConfig(1, 16, 1, 4),
    ("gate_up", 16): HopperConfig(1, 16, 1, 4),
    ("gate_up", 32): HopperConfig(1, 32, 1, 3),
    ("gate_up", 64): HopperConfig(2, 64, 1, 3),
    ("gate_up", 128): HopperConfig(2, 128, 1, 2),
    ("gate_up", 512): HopperConfig(2, 128, 1, 2),
    ("down", 1): HopperConfig(1, 16, 4, 8),
    ("down", 16): HopperConfig(1, 16, 4, 8),
    ("down", 32): HopperConfig(1, 32, 4, 6),
    ("down", 64): HopperConfig(1, 64, 4, 4),
    ("down", 128): HopperConfig(2, 64, 4, 3),
    ("down", 512): HopperConfig(2, 128, 2, 2),
}
"""int4: product and tokens. tests/bench/results/h200.csv has the microseconds of these."""


@pytest.mark.parametrize(("product", "num_tokens"), MEASURED)
def test_measured_choices_stand(product: str, num_tokens: int) -> None:
    """Whoever changes the rule measures again what it changes."""
    num_rows, width = SHAPES[product]
    found = hopper_config(num_tokens, num_rows, num_steps(width, 4), 4)
    assert found == MEASURED[product, num_tokens]


@given(
    st.integers(1, 4096),
    st.integers(1, 512),
    st.integers(1, 512),
    st.sampled_from([4, 8]),
)
def test_each_choice_is_one_that_the_kernel_can_run(
    num_tokens: int, tiles: int, steps: int, bits: int
) -> None:
    config = hopper_config(num_tokens, tiles * ROWS, steps, bits)
    assert config.num_consumers in (1, 2)
    assert tiles % config.num_consumers == 0
    assert config.block_m in (16, 32, 64, 128)
    assert config.num_stages >= 2
    tile_bytes = config.num_consumers * 2 * HALF_BYTES
    token_bytes = config.block_m * 128 * (16 // bits)
    assert config.num_stages * (tile_bytes + token_bytes) <= SHARED_BYTES
    if config.split_k > 1:
        assert steps // config.split_k >= 2
        assert tiles * -(-num_tokens // config.block_m) <= MAX_TILES
