"""RMSNorm with residual at the width of an 8B model, and as QK-norm."""

from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels import rms_norm


def cases() -> Iterator[Case]:
    weight = torch.ones(4096, device="cuda", dtype=torch.bfloat16)
    for num_tokens in (1, 32, 256, 8192):
        num_bytes = 4 * num_tokens * 4096 * 2
        sets = sets_beyond_cache(num_bytes)
        x = torch.randn(2, sets, num_tokens, 4096, device="cuda", dtype=torch.bfloat16)

        def launch(i: int, x: torch.Tensor = x) -> object:
            return rms_norm(x[0, i], weight, 1e-5, residual=x[1, i])

        yield Case(f"rms_norm residual T={num_tokens} H=4096", launch, sets, num_bytes)
    heads = torch.randn(8192, 32, 128, device="cuda", dtype=torch.bfloat16)
    yield Case(
        "rms_norm T=8192 heads=32 D=128",
        lambda i: rms_norm(heads, weight[:128], 1e-6),
        4,
        2 * heads.numel() * 2,
    )
