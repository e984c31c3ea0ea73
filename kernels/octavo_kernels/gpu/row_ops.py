"""Tiny kernels around a captured step: its inputs from the request table, its tokens back into it.

Addresses never change between replays; which rows work is read from device memory.
"""

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous
from octavo_kernels.metadata import SamplingTensors

if TYPE_CHECKING:
    from octavo_kernels.row_ops import DecodeInputs

BLOCK = 1024


@triton.jit(do_not_specialize=["num_words"])
def _write_words_kernel(words, offsets, values, num_words, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = at < num_words
    offset = tl.load(offsets + at, mask=inside, other=0).to(tl.int64)
    tl.store(words + offset, tl.load(values + at, mask=inside, other=0), mask=inside)


def write_words(words: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor) -> None:
    """words[M], offsets[N], values[N]: contiguous int32."""
    num_words = offsets.shape[0]
    if num_words:
        _write_words_kernel[(triton.cdiv(num_words, BLOCK),)](
            words, offsets, values, num_words, BLOCK=BLOCK
        )


@triton.jit
def _decode_inputs_kernel(
    rows,
    positions,
    token_table,
    block_table,
    out_token_ids,
    out_positions,
    out_seq_lens,
    out_slots,
    out_block_table,
    token_stride,
    block_stride,
    out_block_stride,
    BLOCK_SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program a row."""
    wait_for_previous(OVERLAP)
    item = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + item).to(tl.int64)
    is_real = row >= 0
    row = tl.maximum(row, 0)
    position = tl.where(is_real, tl.load(positions + item), 0)
    page_idx = position // BLOCK_SIZE
    token = tl.load(token_table + row * token_stride + position)
    page = tl.load(block_table + row * block_stride + page_idx).to(tl.int64)
    tl.store(out_token_ids + item, tl.where(is_real, token, 0))
    tl.store(out_positions + item, position.to(tl.int64))
    tl.store(out_seq_lens + item, tl.where(is_real, position + 1, 0))
    slot = page * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(out_slots + item, tl.where(is_real, slot, -1))
    for start in range(0, page_idx + 1, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        used = column <= page_idx
        block = tl.load(block_table + row * block_stride + column, mask=used, other=0)
        tl.store(out_block_table + item * out_block_stride + column, block, mask=used)


def decode_inputs(
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    block_table: torch.Tensor,
    out: "DecodeInputs",
    *,
    block_size: int,
) -> None:
    """As `row_ops.decode_inputs`; tables with last stride 1."""
    _decode_inputs_kernel[(rows.shape[0],)](
        rows,
        positions,
        token_table,
        block_table,
        out.token_ids,
        out.positions,
        out.seq_lens,
        out.slots,
        out.block_table,
        token_table.stride(0),
        block_table.stride(0),
        out.block_table.stride(0),
        BLOCK_SIZE=block_size,
        COLUMNS=128,
        num_warps=1,
        **overlap_options(rows.device),
    )


@triton.jit(do_not_specialize=["num_rows"])
def _sampling_inputs_kernel(
    rows,
    positions,
    temperature,
    top_k,
    top_p,
    min_p,
    seeds,
    out_temperature,
    out_top_k,
    out_top_p,
    out_min_p,
    out_seeds,
    out_positions,
    num_rows,
    BLOCK: tl.constexpr,
):
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = item < num_rows
    row = tl.load(rows + item, mask=inside, other=-1).to(tl.int64)
    is_real = row >= 0
    row = tl.maximum(row, 0)
    # A masked load gives temperature 0: padding is greedy, which is the cheapest.
    tl.store(out_temperature + item, tl.load(temperature + row, mask=is_real, other=0), inside)
    tl.store(out_top_k + item, tl.load(top_k + row, mask=is_real, other=0), mask=inside)
    tl.store(out_top_p + item, tl.load(top_p + row, mask=is_real, other=1), mask=inside)
    tl.store(out_min_p + item, tl.load(min_p + row, mask=is_real, other=0), mask=inside)
    tl.store(out_seeds + item, tl.load(seeds + row, mask=is_real, other=0), mask=inside)
    position = tl.load(positions + item, mask=inside, other=0).to(tl.int64)
    tl.store(out_positions + item, position + 1, mask=inside)


def sampling_inputs(
    rows: torch.Tensor, positions: torch.Tensor, table: SamplingTensors, out: SamplingTensors
) -> None:
    """As `row_ops.sampling_inputs`; all contiguous."""
    num_rows = rows.shape[0]
    _sampling_inputs_kernel[(triton.cdiv(num_rows, 128),)](
        rows,
        positions,
        table.temperature,
        table.top_k,
        table.top_p,
        table.min_p,
        table.seeds,
        out.temperature,
        out.top_k,
        out.top_p,
        out.min_p,
        out.seeds,
        out.positions,
        num_rows,
        BLOCK=128,
    )


@triton.jit(do_not_specialize=["num_rows"])
def _commit_sampled_kernel(
    ids,
    rows,
    positions,
    token_table,
    host_ids,
    host_slot,
    token_stride,
    host_stride,
    num_rows,
    BLOCK: tl.constexpr,
):
    item = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = item < num_rows
    row = tl.load(rows + item, mask=inside, other=-1).to(tl.int64)
    position = tl.load(positions + item, mask=inside, other=0)
    token = tl.load(ids + item, mask=inside, other=0).to(tl.int32)
    is_real = row >= 0
    tl.store(token_table + tl.maximum(row, 0) * token_stride + position + 1, token, mask=is_real)
    slot = tl.load(host_slot).to(tl.int64)
    tl.store(host_ids + slot * host_stride + item, token, mask=inside)


def commit_sampled(
    ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    host_ids: torch.Tensor,
    host_slot: torch.Tensor,
) -> None:
    """As `row_ops.commit_sampled`; host_ids is on the device or pinned."""
    num_rows = ids.shape[0]
    _commit_sampled_kernel[(triton.cdiv(num_rows, 128),)](
        ids,
        rows,
        positions,
        token_table,
        host_ids,
        host_slot,
        token_table.stride(0),
        host_ids.stride(0),
        num_rows,
        BLOCK=128,
    )
