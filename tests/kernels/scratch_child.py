"""A process for `test_cpu_scratch.py`: kernels of a CPU beside a thread that takes memory, fills it
and gives it back all the time.

Prints by kernel how many of its results differ from the one that it gave while it was alone.
"""

import json
import threading
from collections.abc import Callable

import numpy as np
import torch
from numba import njit
from tests.kernels.attention_case import make_case

from octavo_kernels.ops import paged_attention
from octavo_kernels.tile_linear import pack_tiles, tile_gated, tile_linear

NUM_CALLS = 20
NUM_TOKENS, SIZE, NUM_COLUMNS = 2048, 512, 1024
NUM_TAKEN, TAKEN_FLOATS = 64, 1024
"""So many that some lie wherever a kernel has given memory back, each small enough for it."""


@njit(nogil=True)
def take_memory(is_over: np.ndarray) -> None:
    while is_over[0] == 0:
        taken = [np.empty(TAKEN_FLOATS, np.float32) for _ in range(NUM_TAKEN)]
        for memory in taken:
            memory[:] = np.nan


def attention(generator: torch.Generator, head_dim: int) -> Callable[[], torch.Tensor]:
    """By the matrix unit, where this CPU has one, for a head_dim that fills its chunks of 32."""
    case = make_case(
        [1] * 16, [700] * 16, num_decode_rows=16, num_q_heads=8, num_kv_heads=2, head_dim=head_dim,
        block_size=16, dtype=torch.bfloat16, generator=generator,
    )  # fmt: skip
    return lambda: paged_attention(case.q, case.k_cache, case.v_cache, case.metadata, scale=0.125)


def main() -> None:
    torch.set_num_threads(1)
    cpu = torch.Generator().manual_seed(20261130)
    x = torch.randn(NUM_TOKENS, SIZE, generator=cpu).bfloat16()
    gate, up = map(pack_tiles, torch.randn(2, NUM_COLUMNS, SIZE, generator=cpu).bfloat16())
    kernels = {
        "tile_linear": lambda: tile_linear(x, gate),
        "tile_gated": lambda: tile_gated(x, gate, up, activation="silu"),
        "tile_attention": attention(cpu, 64),
        "decode_attention": attention(cpu, 48),
    }
    alone = {name: run() for name, run in kernels.items()}
    is_over = np.zeros(1)
    neighbour = threading.Thread(target=take_memory, args=[is_over])
    neighbour.start()
    try:
        num_wrong = {
            name: sum(not torch.equal(run(), alone[name]) for _ in range(NUM_CALLS))
            for name, run in kernels.items()
        }
    finally:
        is_over[0] = 1
        neighbour.join()
    print(json.dumps(num_wrong))


if __name__ == "__main__":
    main()
