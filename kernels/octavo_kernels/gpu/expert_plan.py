"""Sorts a step's pairs of token and expert by expert and cuts them into tiles, on the GPU alone.

How many tiles there are depends on what the router chose; as many are laid out as there can be,
and those too many have no expert.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous

NO_EXPERT = -1
CHUNKS = (512, 4096)
"""Pairs that a program looks at together: the smallest that holds all, else the largest."""


@dataclass(frozen=True)
class ExpertPlan:
    order: torch.Tensor
    """[P] int32: pairs by expert, in their own order within an expert."""
    tiles: torch.Tensor
    """[max_tiles, 3] int32: expert, first and end in `order`; NO_EXPERT where a tile is too many.
    A tile has at most block_m pairs of one expert."""


def max_tiles(num_pairs: int, num_experts: int, block_m: int) -> int:
    """Full tiles, and one that is not for each expert that can have pairs at all."""
    num_used = min(num_pairs, num_experts)
    return (num_pairs + num_used * (block_m - 1)) // block_m


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _plan_experts_kernel(
    chosen,
    order,
    tiles,
    num_pairs,
    num_tiles,
    E: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """A program lays out its expert's pairs and tiles; for where they begin it counts them all."""
    wait_for_previous(OVERLAP)
    expert = tl.program_id(0)
    lane = tl.arange(0, CHUNK)
    bins = tl.arange(0, BINS)
    counts = tl.zeros((BINS,), tl.int32)
    for begin in range(0, num_pairs, CHUNK):
        pair = begin + lane
        ids = tl.load(chosen + pair, mask=pair < num_pairs, other=BINS - 1)
        counts += tl.histogram(ids, BINS)
    first = tl.sum(tl.where(bins < expert, counts, 0), 0)
    tiles_of = (counts + BLOCK_M - 1) // BLOCK_M
    first_tile = tl.sum(tl.where(bins < expert, tiles_of, 0), 0)
    end = first + tl.sum(tl.where(bins == expert, counts, 0), 0)
    end_tile = first_tile + tl.sum(tl.where(bins == expert, tiles_of, 0), 0)
    target = first
    for begin in range(0, num_pairs, CHUNK):
        pair = begin + lane
        ids = tl.load(chosen + pair, mask=pair < num_pairs, other=BINS - 1)
        is_mine = (ids == expert).to(tl.int32)
        tl.store(order + target + tl.cumsum(is_mine, 0) - 1, pair, mask=is_mine == 1)
        target += tl.sum(is_mine, 0)
    for begin in range(first_tile, end_tile, CHUNK):
        tile = begin + lane
        start = first + (tile - first_tile) * BLOCK_M
        tl.store(tiles + tile * 3, expert + 0 * lane, mask=tile < end_tile)
        tl.store(tiles + tile * 3 + 1, start, mask=tile < end_tile)
        tl.store(tiles + tile * 3 + 2, tl.minimum(start + BLOCK_M, end), mask=tile < end_tile)
    if expert == E - 1:
        for begin in range(end_tile, num_tiles, CHUNK):
            tile = begin + lane
            tl.store(tiles + tile * 3, 0 * lane - 1, mask=tile < num_tiles)


def plan_experts(chosen: torch.Tensor, num_experts: int, block_m: int) -> ExpertPlan:
    """chosen: [T, top_k] int32, contiguous, all below num_experts."""
    num_pairs = chosen.numel()
    num_tiles = max_tiles(num_pairs, num_experts, block_m)
    device = chosen.device
    order = torch.empty(num_pairs, dtype=torch.int32, device=device)
    tiles = torch.empty(num_tiles, 3, dtype=torch.int32, device=device)
    _plan_experts_kernel[(num_experts,)](
        chosen,
        order,
        tiles,
        num_pairs,
        num_tiles,
        E=num_experts,
        # One more than experts: what is beyond the last pair is counted there.
        BINS=triton.next_power_of_2(num_experts + 1),
        BLOCK_M=block_m,
        CHUNK=CHUNKS[0] if num_pairs <= CHUNKS[0] else CHUNKS[1],
        num_warps=4,
        **overlap_options(device),
    )
    return ExpertPlan(order, tiles)
