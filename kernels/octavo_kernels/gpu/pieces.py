"""Adds up the pieces of a product whose long rows were cut among programs."""

import triton
import triton.language as tl


@triton.jit
def add_pieces(acc, partial, arrivals, tile, piece, BLOCK_N: tl.constexpr, BLOCK_M: tl.constexpr,
               SPLIT_K: tl.constexpr):  # fmt: skip
    """(sum of all pieces of the tile, whether this program, the last to arrive, has it)."""
    inner = tl.arange(0, BLOCK_N)[:, None] * BLOCK_M + tl.arange(0, BLOCK_M)[None, :]
    first = partial + tile.to(tl.int64) * (SPLIT_K * BLOCK_N * BLOCK_M) + inner
    tl.store(first + piece * (BLOCK_N * BLOCK_M), acc)
    # All threads have stored before the one that counts this piece in releases.
    tl.debug_barrier()
    is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLIT_K - 1
    if is_last:
        tl.store(arrivals + tile, 0)
        acc = tl.zeros((BLOCK_N, BLOCK_M), acc.dtype)
        for idx in range(SPLIT_K):
            acc += tl.load(first + idx * (BLOCK_N * BLOCK_M), cache_modifier=".cg")
    return acc, is_last
