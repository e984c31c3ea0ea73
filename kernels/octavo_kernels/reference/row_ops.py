"""Plain versions of the ops on a table of request rows."""

from typing import TYPE_CHECKING

import torch

from octavo_kernels.metadata import SamplingTensors

if TYPE_CHECKING:
    from octavo_kernels.row_ops import DecodeInputs


def write_words(words: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor) -> None:
    words[offsets.long()] = values


def decode_inputs(
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    block_table: torch.Tensor,
    out: "DecodeInputs",
    *,
    block_size: int,
) -> None:
    is_real = rows >= 0
    row = rows.clamp(min=0).long()
    position = torch.where(is_real, positions, 0).long()
    page = block_table[row, position // block_size].long()
    out.token_ids.copy_(torch.where(is_real, token_table[row, position], 0))
    out.positions.copy_(position)
    out.seq_lens.copy_(torch.where(is_real, position + 1, 0))
    out.slots.copy_(torch.where(is_real, page * block_size + position % block_size, -1))
    for idx, (source, pages) in enumerate(
        zip(row.tolist(), (position // block_size + 1).tolist(), strict=True)
    ):
        out.block_table[idx, :pages] = block_table[source, :pages]


def sampling_inputs(
    rows: torch.Tensor, positions: torch.Tensor, table: SamplingTensors, out: SamplingTensors
) -> None:
    is_real = rows >= 0
    row = rows.clamp(min=0).long()
    out.temperature.copy_(torch.where(is_real, table.temperature[row], 0.0))
    out.top_k.copy_(table.top_k[row])
    out.top_p.copy_(table.top_p[row])
    out.min_p.copy_(table.min_p[row])
    out.seeds.copy_(table.seeds[row])
    out.positions.copy_(positions.long() + 1)


def commit_sampled(
    ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    host_ids: torch.Tensor,
    host_slot: torch.Tensor,
) -> None:
    is_real = rows >= 0
    token_table[rows[is_real].long(), positions[is_real].long() + 1] = ids[is_real].int()
    host_ids[int(host_slot[0]), : len(ids)] = ids.int()


def commit_largest(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    host_ids: torch.Tensor,
    host_slot: torch.Tensor,
) -> None:
    ids = logits.float().argmax(dim=-1)
    commit_sampled(ids, rows, positions, token_table, host_ids, host_slot)
