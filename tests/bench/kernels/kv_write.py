"""The KV write alone, for a prefill."""

from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels import kv_write


def cases() -> Iterator[Case]:
    num_tokens = 8192
    num_bytes = 4 * num_tokens * 8 * 128 * 2
    sets = sets_beyond_cache(num_bytes)
    kv = torch.randn(2, sets, num_tokens, 8, 128, device="cuda", dtype=torch.bfloat16)
    cache = torch.zeros(2, num_tokens // 64, 8, 64, 128, device="cuda", dtype=torch.bfloat16)
    slots = torch.arange(num_tokens, device="cuda")

    def launch(i: int) -> object:
        return kv_write(kv[0, i], kv[1, i], cache[0], cache[1], slots)

    yield Case(f"kv_write T={num_tokens}", launch, sets, num_bytes)
