"""Compiles launches for sm_89 on a machine without a GPU: JSON lines of kernels and bytes of
shared memory.

A process of its own, as `compile_sm90`.
"""

import json
from typing import Any

import torch
from tests.kernels import compile_sm90
from triton.backends.compiler import GPUTarget

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import decode_attention, decode_config
from octavo_kernels.gpu.prefill_attention import prefill_attention, prefill_config
from octavo_kernels.gpu.schedule import plan_decode
from octavo_kernels.gpu.skinny_linear import skinny_linear, vocabulary_linear

BF16 = torch.bfloat16


class AdaDriver(compile_sm90.OfflineDriver):
    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 89, 32)


def attention(page_size: int, head_dim: int) -> None:
    q = torch.empty(4, 32, head_dim, dtype=BF16)
    pages = torch.empty(8, 8, page_size, head_dim, dtype=BF16)
    table = torch.zeros(4, 4, dtype=torch.int32)
    options = AttentionOptions(scale=0.1)
    config = prefill_config(head_dim, page_size, 2, tma_possible=False)
    tiles = torch.zeros(3, 4, dtype=torch.int32)
    prefill_attention(q, pages, pages, q, tiles, table, config, options)
    lens = torch.ones(4, dtype=torch.int32)
    plan = plan_decode(lens, num_kv_heads=8, window=None, target_items=16)
    decoding = decode_config(4, head_dim, page_size, 2, tma_possible=False)
    decode_attention(q, pages, pages, q, plan, table, decoding, options)


def product(num_tokens: int, num_rows: int, width: int, *, gated: bool) -> None:
    x = torch.empty(num_tokens, width, dtype=BF16)
    weight = torch.empty(num_rows, width, dtype=BF16)
    arrivals = torch.zeros(4096, dtype=torch.int32)
    skinny_linear(x, weight, None, gated=gated, norm=None, add=None, arrivals=arrivals)


def vocabulary(num_tokens: int) -> None:
    x = torch.empty(num_tokens, 4096, dtype=BF16)
    vocabulary_linear(x, torch.empty(128_256, 4096, dtype=BF16))


def main() -> None:
    launches: list[dict[str, Any]] = []
    compile_sm90.collect_launches(launches, AdaDriver(), _shared_bytes)
    for page_size, head_dim in ((16, 128), (128, 128), (64, 256)):
        attention(page_size, head_dim)
    for num_tokens in (2, 32, 64):
        product(num_tokens, 6144, 4096, gated=False)
        product(num_tokens, 28672, 4096, gated=True)
        vocabulary(num_tokens)
    product(64, 4096, 14336, gated=False)
    for launch in launches:
        print(json.dumps(launch))


def _shared_bytes(name: str, compiled: Any) -> dict[str, Any]:
    return {"kernel": name, "shared_bytes": compiled.metadata.shared}


if __name__ == "__main__":
    main()
