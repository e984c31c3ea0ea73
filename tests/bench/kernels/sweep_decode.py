"""Which decode configuration is fastest where: run as a module, on a GPU.

Its outcome is what `decode_config` and `target_items` hold.
"""

import dataclasses
import itertools

import torch
from tests.bench.kernels.harness import Case, measure
from tests.bench.kernels.paged_attention import (
    HEAD_DIM,
    NUM_KV_HEADS,
    NUM_Q_HEADS,
    SCALE,
    decode,
    make_metadata,
)

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import DecodeConfig, decode_attention
from octavo_kernels.gpu.schedule import plan_decode

PAGE = 64
TARGETS = (8, 16, 33, 66, 99, 126)
# keys first, warps, stages
FORMS = ((False, 2, 3), (False, 4, 3), (True, 4, 2), (True, 4, 3), (True, 4, 4))


def sweep(rows: int, length: int) -> None:
    step = decode(rows, length)
    num_blocks = rows * -(-length // PAGE)
    kv_bytes = rows * length * NUM_KV_HEADS * HEAD_DIM * 4
    sets = max(2, min(8, int(6e8 / kv_bytes) + 1))
    shape = (sets, 2, num_blocks, NUM_KV_HEADS, PAGE, HEAD_DIM)
    caches = torch.randn(shape, device="cuda", dtype=torch.bfloat16)
    q = torch.randn(rows, NUM_Q_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    metadata = dataclasses.replace(make_metadata(step, PAGE, num_blocks), schedule=None)
    options = AttentionOptions(scale=SCALE)
    results = []
    for target, (keys_first, warps, stages) in itertools.product(TARGETS, FORMS):
        plan = plan_decode(
            metadata.seq_lens, num_kv_heads=NUM_KV_HEADS, window=None, target_items=target
        )
        config = DecodeConfig(64, keys_first, True, warps, stages)

        def launch(i: int, plan: object = plan, config: DecodeConfig = config) -> None:
            decode_attention(
                q, caches[i, 0], caches[i, 1], out, plan, metadata.block_table, config, options
            )  # type: ignore[arg-type]  # `plan` is declared object

        us = measure(Case("", launch, sets, kv_bytes)).us
        results.append((us, f"T{target} {'K' if keys_first else 'Q'} w{warps} s{stages}"))
    best = ", ".join(f"{name} {us:.1f}" for us, name in sorted(results)[:5])
    print(f"B={rows} ctx={length}: {best}; worst {max(results)[0]:.1f}", flush=True)


def main() -> None:
    for rows, length in (
        (1, 2048), (1, 8192), (8, 2048), (16, 2048), (24, 2048), (32, 512), (32, 2048), (48, 2048),
        (64, 512), (64, 2048), (96, 2048), (128, 512), (128, 2048), (256, 512), (256, 2048),
    ):  # fmt: skip
        sweep(rows, length)


if __name__ == "__main__":
    main()
