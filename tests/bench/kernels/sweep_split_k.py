"""Which cut of long rows is fastest in products with packed weights: run as a module, on a GPU.

Its outcome is what `hopper_config` holds. Arguments: numbers of tokens.
"""

import dataclasses
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tests.bench.gpu_quantized import random_matrix
from tests.bench.kernels.harness import Case, measure, sets_beyond_cache
from tests.bench.kernels.quant_linear import SHAPES
from triton import OutOfResources

from octavo_kernels.gpu import hopper_packed
from octavo_kernels.gpu.compile_only import compile_only
from octavo_kernels.gpu.hopper_packed import HopperConfig, hopper_config
from octavo_kernels.packed_weight import PackedWeight

NUM_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512)
SPLITS = (1, 2, 4, 8)
KINDS = ("int4", "fp8")


def configurations(chosen: HopperConfig, num_tiles: int) -> list[HopperConfig]:
    """That chosen first; then other cuts, each with as many stages and with two more."""
    found = [chosen]
    for split_k in SPLITS:
        for more_stages in (0, 2):
            for consumers in {1, chosen.num_consumers}:
                config = dataclasses.replace(
                    chosen,
                    split_k=split_k,
                    num_stages=chosen.num_stages + more_stages,
                    num_consumers=consumers,
                )
                if num_tiles % consumers == 0 and config not in found:
                    found.append(config)
    return found


@contextmanager
def configured(config: HopperConfig) -> Iterator[None]:
    hopper_packed.hopper_config = lambda *_: config
    try:
        yield
    finally:
        hopper_packed.hopper_config = hopper_config


def sweep(kind: str, name: str, num_tokens: int, weights: list[PackedWeight]) -> None:
    weight = weights[0]
    x = torch.randn(num_tokens, weight.width, device=weight.words.device, dtype=torch.bfloat16)

    def launch(idx: int) -> object:
        return hopper_packed.hopper_packed_linear(x, weights[idx], None)

    chosen = hopper_config(num_tokens, weight.num_rows, weight.num_steps, weight.bits)
    configs = configurations(chosen, weight.num_rows // hopper_packed.ROWS)
    with compile_only(os.cpu_count() or 1):
        for config in configs:
            with configured(config):
                launch(0)
    times = []
    for config in configs:
        try:
            with configured(config):
                us = measure(Case("", launch, len(weights), weight.num_bytes)).us
        except OutOfResources as error:
            print(f"  {_shown(config)}: {error}", flush=True)
            continue
        times.append((us, _shown(config)))
    best = ", ".join(f"{shown} {us:.1f}" for us, shown in sorted(times)[:3])
    print(
        f"{kind} {name} T={num_tokens}: chosen {times[0][1]} {times[0][0]:.1f} us; {best}",
        flush=True,
    )


def _shown(config: HopperConfig) -> str:
    return f"m{config.block_m} k{config.split_k} s{config.num_stages} c{config.num_consumers}"


def main() -> None:
    tokens = [int(number) for number in sys.argv[1:]] or NUM_TOKENS
    device = torch.device("cuda", torch.cuda.current_device())
    for kind in KINDS:
        for name, shape in SHAPES.items():
            first = random_matrix(kind, shape, device).pack()[0]
            num_sets = min(16, sets_beyond_cache(first.num_bytes))
            weights = [first] + [
                random_matrix(kind, shape, device).pack()[0] for _ in range(num_sets - 1)
            ]
            for num_tokens in tokens:
                sweep(kind, name, num_tokens, weights)


if __name__ == "__main__":
    main()
