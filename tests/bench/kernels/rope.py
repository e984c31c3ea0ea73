"""RoPE fused with the KV write, with and without QK-norm, on a packed projection of an 8B model."""

from collections.abc import Iterator

import torch
from tests.bench.kernels.harness import Case, sets_beyond_cache

from octavo_kernels import rope_kv_write


def cases() -> Iterator[Case]:
    tables = torch.randn(8192, 64, device="cuda")
    norm = torch.ones(128, device="cuda", dtype=torch.bfloat16)
    for num_tokens in (1, 32, 256, 8192):
        for qk_norm in (None, (norm, norm)):
            # q, k, v read once; q and the cache written once
            num_bytes = 2 * num_tokens * 48 * 128 * 2
            sets = sets_beyond_cache(num_bytes)
            packed = torch.randn(sets, num_tokens, 48, 128, device="cuda", dtype=torch.bfloat16)
            shape = (2, 8 + num_tokens // 64, 8, 64, 128)
            cache = torch.zeros(shape, device="cuda", dtype=torch.bfloat16)
            slots = torch.randperm(num_tokens, device="cuda") + 64
            positions = torch.arange(num_tokens, device="cuda")

            def launch(
                i: int,
                packed: torch.Tensor = packed,
                cache: torch.Tensor = cache,
                slots: torch.Tensor = slots,
                positions: torch.Tensor = positions,
                qk_norm: tuple[torch.Tensor, torch.Tensor] | None = qk_norm,
            ) -> object:
                q, k, v = packed[i].split([32, 8, 8], dim=1)
                return rope_kv_write(
                    q, k, v, tables, tables, positions, cache[0], cache[1], slots,
                    qk_norm=qk_norm, eps=1e-6,
                )  # fmt: skip

            suffix = "" if qk_norm is None else " qk_norm"
            yield Case(f"rope_kv_write{suffix} T={num_tokens}", launch, sets, num_bytes)
