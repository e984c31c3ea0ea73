"""The activation at the width of an 8B model, alone and with the product in front of it."""

from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache
from torch.nn import functional

from octavo_kernels import silu_mul
from octavo_kernels.gpu.hopper_gated import hopper_gated_linear

WIDTH, NUM_ROWS = 4096, 14336
NUM_WEIGHTS = 3
"""One behind the other they are more than a cache holds."""


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def cases() -> Iterator[Case]:
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 3 * num_tokens * NUM_ROWS * 2
        sets = sets_beyond_cache(num_bytes)
        x = draw(sets, num_tokens, 2 * NUM_ROWS)

        def launch(i: int, x: torch.Tensor = x) -> object:
            return silu_mul(x[i])

        yield Case(f"silu_mul T={num_tokens} I={NUM_ROWS}", launch, sets, num_bytes)
    weights = draw(NUM_WEIGHTS, 2 * NUM_ROWS, WIDTH)
    for num_tokens in (128, 256, 512, 1024, 8192):
        x = draw(num_tokens, WIDTH)
        num_bytes = 2 * (2 * NUM_ROWS * WIDTH + num_tokens * (WIDTH + NUM_ROWS))

        def in_one(i: int, x: torch.Tensor = x) -> object:
            return hopper_gated_linear(x, weights[i], gelu=False)

        def in_two(i: int, x: torch.Tensor = x) -> object:
            return silu_mul(functional.linear(x, weights[i]))

        name = f"gated product T={num_tokens} I={NUM_ROWS}"
        yield Case(name, in_one, NUM_WEIGHTS, num_bytes)
        yield Case(f"{name}, cuBLAS and silu_mul", in_two, NUM_WEIGHTS, num_bytes)
