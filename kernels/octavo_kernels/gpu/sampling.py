"""Chooses one token a row: the largest logit, or the largest after Gumbel noise.

Rows are cut into parts, so that one row keeps the GPU as busy as many do. Rows with top-k, top-p or
min-p go on from this pass in `sampling_filters`. What rows change in their logits is changed in
this pass, in place (`logit_changes`). Where no row draws, the launch that merges the parts also
commits the tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous
from octavo_kernels.gpu.logit_changes import NUM_FIELDS, change_part
from octavo_kernels.gpu.noise import row_keys
from octavo_kernels.gpu.sampling_filters import RowParts, draw_filtered_rows, is_filtered
from octavo_kernels.gpu.sampling_passes import NO_TOKEN, draw
from octavo_kernels.metadata import SamplingTensors

PART_LEN = 8192
BLOCK = 2048
CHANGE_BLOCK = 1024
"""Logits whose ids are counted at once."""
FEW_ROWS = 64
"""Up to here a program of a greedy step has one block of logits: it waits for memory once."""


@triton.jit
def _draw_kernel(
    logits, part_ids, part_best, temperatures, top_ks, top_ps, min_ps, seeds, positions, changes,
    stride_row, NUM_TOKENS: tl.constexpr, NUM_PARTS: tl.constexpr, PART_LEN: tl.constexpr,
    ALL_GREEDY: tl.constexpr, HAS_CHANGES: tl.constexpr, CHANGE_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The best of one part: noisy for a row that draws freely, the largest for the others."""
    wait_for_previous(OVERLAP)
    program = tl.program_id(0)
    row = (program // NUM_PARTS).to(tl.int64)
    begin = program % NUM_PARTS * PART_LEN
    end = tl.minimum(begin + PART_LEN, NUM_TOKENS)
    if HAS_CHANGES:
        change_part(logits + row * stride_row, changes + row * NUM_FIELDS, begin, end, CHANGE_BLOCK)
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
def _merged(part_ids, part_best, row, NUM_PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """The best of a row's parts; the lowest id on a tie, and id 0 where no part has a number."""
    part = tl.arange(0, BLOCK)
    inside = part < NUM_PARTS
    best = tl.load(part_best + row * NUM_PARTS + part, mask=inside, other=float("-inf"))
    part_id = tl.load(part_ids + row * NUM_PARTS + part, mask=inside, other=NO_TOKEN)
    winner = tl.min(tl.where(best == tl.max(best, 0), part_id, NO_TOKEN), 0)
    return tl.where(winner == NO_TOKEN, 0, winner)


@triton.jit
def _merge_kernel(
    part_ids, part_best, ids, NUM_PARTS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    wait_for_previous(OVERLAP)
    row = tl.program_id(0)
    tl.store(ids + row, _merged(part_ids, part_best, row, NUM_PARTS, BLOCK).to(tl.int64))


@triton.jit
def _merge_and_commit_kernel(
    part_ids, part_best, rows, positions, token_table, host_ids, host_slot, token_stride,
    host_stride, NUM_PARTS: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    wait_for_previous(OVERLAP)
    item = tl.program_id(0)
    row = tl.load(rows + item).to(tl.int64)
    position = tl.load(positions + item)
    slot = tl.load(host_slot).to(tl.int64)
    token = _merged(part_ids, part_best, item, NUM_PARTS, BLOCK)
    target = token_table + tl.maximum(row, 0) * token_stride + position + 1
    tl.store(target, token, mask=row >= 0)
    tl.store(host_ids + slot * host_stride + item, token)


@dataclass(frozen=True)
class _Parts:
    """The best of each part of each row."""

    ids: torch.Tensor
    """[R, parts] int32."""
    best: torch.Tensor
    """[R, parts] float32."""

    @property
    def count(self) -> int:
        return self.ids.shape[1]


def _draw_parts(
    logits: torch.Tensor,
    params: SamplingTensors | None,
    part_len: int,
    changes: torch.Tensor | None = None,
) -> _Parts:
    """params None: no row draws."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(
            f"sample takes logits [R, N] with last stride 1, got {tuple(logits.shape)}"
        )
    num_rows, num_tokens = logits.shape
    num_parts = triton.cdiv(num_tokens, part_len)
    parts = _Parts(
        torch.empty(num_rows, num_parts, dtype=torch.int32, device=logits.device),
        torch.empty(num_rows, num_parts, dtype=torch.float32, device=logits.device),
    )
    wishes = [parts.ids] * 6
    if params is not None:
        wishes = [
            params.temperature, params.top_k, params.top_p, params.min_p, params.seeds,
            params.positions,
        ]  # fmt: skip
    _draw_kernel[(num_rows * num_parts,)](
        logits, parts.ids, parts.best, *wishes, parts.ids if changes is None else changes,
        logits.stride(0),
        NUM_TOKENS=num_tokens,
        NUM_PARTS=num_parts,
        PART_LEN=part_len,
        ALL_GREEDY=params is None,
        HAS_CHANGES=changes is not None,
        CHANGE_BLOCK=CHANGE_BLOCK,
        BLOCK=BLOCK,
        **overlap_options(logits.device),
    )  # fmt: skip
    return parts


def sample(
    logits: torch.Tensor, params: SamplingTensors, changes: torch.Tensor | None = None
) -> torch.Tensor:
    """As `ops.sample`; logits [R, N] with last stride 1. changes: `changes_table` of the rows."""
    num_rows = logits.shape[0]
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if not num_rows:
        return ids
    parts = _draw_parts(logits, None if params.all_greedy else params, PART_LEN, changes)
    _merge_kernel[(num_rows,)](
        parts.ids,
        parts.best,
        ids,
        NUM_PARTS=parts.count,
        BLOCK=triton.next_power_of_2(parts.count),
        num_warps=1,
        **overlap_options(logits.device),
    )
    if params.any_filter and not params.all_greedy:
        filtered = RowParts(num_parts=parts.count, part_len=PART_LEN, best=parts.best)
        draw_filtered_rows(logits, ids, filtered, params)
    return ids


def commit_largest(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    host_ids: torch.Tensor,
    host_slot: torch.Tensor,
) -> None:
    """As `row_ops.commit_largest`; host_ids is on the device or pinned."""
    num_rows = logits.shape[0]
    parts = _draw_parts(logits, None, BLOCK if num_rows <= FEW_ROWS else PART_LEN)
    _merge_and_commit_kernel[(num_rows,)](
        parts.ids,
        parts.best,
        rows,
        positions,
        token_table,
        host_ids,
        host_slot,
        token_table.stride(0),
        host_ids.stride(0),
        NUM_PARTS=parts.count,
        BLOCK=triton.next_power_of_2(parts.count),
        num_warps=1,
        **overlap_options(logits.device),
    )
