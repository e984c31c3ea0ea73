"""silu_mul at the width of an 8B model."""

from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels import silu_mul


def cases() -> Iterator[Case]:
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 3 * num_tokens * 14336 * 2
        sets = sets_beyond_cache(num_bytes)
        x = torch.randn(sets, num_tokens, 2 * 14336, device="cuda", dtype=torch.bfloat16)

        def launch(i: int, x: torch.Tensor = x) -> object:
            return silu_mul(x[i])

        yield Case(f"silu_mul T={num_tokens} I=14336", launch, sets, num_bytes)
