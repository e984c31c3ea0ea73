"""Chooses one token a row: the largest logit, or the largest after Gumbel noise.

Rows are cut into parts, so that one row keeps the GPU as busy as many do. Rows with top-k, top-p or
min-p go on from this pass in `sampling_filters`.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.noise import row_keys
from octavo_kernels.gpu.sampling_filters import RowParts, draw_filtered_rows, is_filtered
from octavo_kernels.gpu.sampling_passes import NO_TOKEN, draw
from octavo_kernels.metadata import SamplingTensors

PART_LEN = 8192
BLOCK = 2048


@triton.jit
def _draw_kernel(
    logits, part_ids, part_best, temperatures, top_ks, top_ps, min_ps, seeds, positions, stride_row,
    NUM_TOKENS: tl.constexpr, NUM_PARTS: tl.constexpr, PART_LEN: tl.constexpr,
    ALL_GREEDY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The best of one part: noisy for a row that draws freely, the largest for the others."""
    program = tl.program_id(0)
    row = (program // NUM_PARTS).to(tl.int64)
    begin = program % NUM_PARTS * PART_LEN
    end = tl.minimum(begin + PART_LEN, NUM_TOKENS)
    inverse = 1.0
    noisy_row = False
    key_1 = tl.full((), 0, tl.uint32)
    key_2 = key_1
    if not ALL_GREEDY:
        temperature = tl.load(temperatures + row)
        top_k = tl.load(top_ks + row)
        top_p, min_p = tl.load(top_ps + row), tl.load(min_ps + row)
        is_greedy = (temperature <= 0) | (top_k == 1)
        inverse = 1.0 / tl.where(is_greedy, 1.0, temperature)
        filtered = is_filtered(temperature, top_k, top_p, min_p, NUM_TOKENS)
        noisy_row = (is_greedy == 0) & (filtered == 0)
        key_1, key_2 = row_keys(tl.load(seeds + row), tl.load(positions + row))
    nothing = float("-inf")
    winner, _, best = draw(
        logits + row * stride_row, begin, end, inverse, nothing, nothing, key_1, key_2, noisy_row,
        BLOCK,
    )  # fmt: skip
    tl.store(part_ids + program, winner)
    tl.store(part_best + program, best)


@triton.jit
def _merge_kernel(part_ids, part_best, ids, NUM_PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The best of a row's parts; the lowest id on a tie, and id 0 where no part has a number."""
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    inside = part < NUM_PARTS
    best = tl.load(part_best + row * NUM_PARTS + part, mask=inside, other=float("-inf"))
    part_id = tl.load(part_ids + row * NUM_PARTS + part, mask=inside, other=NO_TOKEN)
    winner = tl.min(tl.where(best == tl.max(best, 0), part_id, NO_TOKEN), 0)
    tl.store(ids + row, tl.where(winner == NO_TOKEN, 0, winner).to(tl.int64))


def sample(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """As `ops.sample`; logits [R, N] with last stride 1."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(
            f"sample takes logits [R, N] with last stride 1, got {tuple(logits.shape)}"
        )
    num_rows, num_tokens = logits.shape
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return ids
    num_parts = triton.cdiv(num_tokens, PART_LEN)
    part_ids = torch.empty(num_rows, num_parts, dtype=torch.int32, device=logits.device)
    part_best = torch.empty(num_rows, num_parts, dtype=torch.float32, device=logits.device)
    _draw_kernel[(num_rows * num_parts,)](
        logits, part_ids, part_best, params.temperature, params.top_k, params.top_p, params.min_p,
        params.seeds, params.positions, logits.stride(0),
        NUM_TOKENS=num_tokens,
        NUM_PARTS=num_parts,
        PART_LEN=PART_LEN,
        ALL_GREEDY=params.all_greedy,
        BLOCK=BLOCK,
    )  # fmt: skip
    _merge_kernel[(num_rows,)](
        part_ids,
        part_best,
        ids,
        NUM_PARTS=num_parts,
        BLOCK=triton.next_power_of_2(num_parts),
        num_warps=1,
    )
    if params.any_filter and not params.all_greedy:
        parts = RowParts(num_parts=num_parts, part_len=PART_LEN, best=part_best)
        draw_filtered_rows(logits, ids, parts, params)
    return ids
