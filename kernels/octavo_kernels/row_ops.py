"""The public ops on a table of request rows: what a captured step reads and writes besides layers.

A row of -1 is padding: it gets harmless inputs and nothing of it is stored. As in `ops`, the
reference runs on a CPU, the Triton kernel on a GPU. Shapes: B rows of a step, R rows of the table.
"""

from dataclasses import dataclass

import torch

from octavo_kernels.metadata import SamplingTensors


@dataclass(frozen=True)
class DecodeInputs:
    """Outputs of `decode_inputs` for one KV group, at fixed addresses."""

    token_ids: torch.Tensor
    """[B] int32."""
    positions: torch.Tensor
    """[B] int64."""
    seq_lens: torch.Tensor
    """[B] int32."""
    slots: torch.Tensor
    """[B] int64."""
    block_table: torch.Tensor
    """[B, C] int32."""


def write_words(words: torch.Tensor, offsets: torch.Tensor, values: torch.Tensor) -> None:
    """words[offsets[N]] = values[N], all int32; equal offsets come with equal values."""
    if words.is_cpu:
        from octavo_kernels.reference.row_ops import write_words as run
    else:
        from octavo_kernels.gpu.row_ops import write_words as run
    run(words, offsets, values)


def decode_inputs(
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    block_table: torch.Tensor,
    out: DecodeInputs,
    *,
    block_size: int,
) -> None:
    """Fills `out` for a step in which each of rows[B] computes the one token at positions[B].

    rows and positions are int32; token_table[R, L] and block_table[R, C] int32. Of a row's blocks
    only those up to its position's are copied. Padding: token 0, position 0, length 0, slot -1.
    """
    if rows.is_cpu:
        from octavo_kernels.reference.row_ops import decode_inputs as run
    else:
        from octavo_kernels.gpu.row_ops import decode_inputs as run
    run(rows, positions, token_table, block_table, out, block_size=block_size)


def sampling_inputs(
    rows: torch.Tensor, positions: torch.Tensor, table: SamplingTensors, out: SamplingTensors
) -> None:
    """Gathers each of rows[B]'s parameters from table[R] into out[B].

    out.positions is positions[B] + 1: the position of the token to sample. table.positions is not
    read. Padding is greedy.
    """
    if rows.is_cpu:
        from octavo_kernels.reference.row_ops import sampling_inputs as run
    else:
        from octavo_kernels.gpu.row_ops import sampling_inputs as run
    run(rows, positions, table, out)


def commit_sampled(
    ids: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    host_ids: torch.Tensor,
    host_slot: torch.Tensor,
) -> None:
    """Stores ids[B] at token_table[rows, positions + 1] and in host_ids[host_slot[0], :B].

    host_ids [slots, >= B] int32 may be pinned host memory: then no copy follows the step.
    """
    if rows.is_cpu:
        from octavo_kernels.reference.row_ops import commit_sampled as run
    else:
        from octavo_kernels.gpu.row_ops import commit_sampled as run
    run(ids, rows, positions, token_table, host_ids, host_slot)


def commit_largest(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    token_table: torch.Tensor,
    host_ids: torch.Tensor,
    host_slot: torch.Tensor,
) -> None:
    """`commit_sampled` of each row's largest of logits[B, N], the lowest id on ties."""
    if rows.is_cpu:
        from octavo_kernels.reference.row_ops import commit_largest as run
    else:
        from octavo_kernels.gpu.sampling import commit_largest as run
    run(logits, rows, positions, token_table, host_ids, host_slot)
