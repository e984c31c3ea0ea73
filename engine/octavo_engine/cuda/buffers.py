"""What captured steps read and write, at addresses that never change.

    words   slot | rows | positions     one upload a step, padding rows are -1
    inputs  what the decode kernels read, gathered on the GPU from the request table
    hidden  the last hidden state of each row that samples

Made once; each captured size uses the first rows.
"""

import dataclasses

import numpy as np
import torch

from octavo_engine.cuda.row_table import DeviceRowTable
from octavo_engine.cuda.transfer import upload_into
from octavo_kernels import SamplingTensors
from octavo_kernels.row_ops import DecodeInputs

HEADER_WORDS = 16
"""Keeps the rows that follow aligned to 64 bytes."""


class StepBuffers:
    def __init__(
        self,
        table: DeviceRowTable,
        *,
        max_num_rows: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.max_num_rows = max_num_rows
        self._stride = -(-max_num_rows // 16) * 16
        self._words = torch.full(
            (HEADER_WORDS + 2 * self._stride,), -1, dtype=torch.int32, device=device
        )
        self.host_slot = self._words[:1]
        self.rows = self._words[HEADER_WORDS : HEADER_WORDS + max_num_rows]
        self.positions = self._words[HEADER_WORDS + self._stride :][:max_num_rows]
        self.query_start = torch.arange(max_num_rows + 1, dtype=torch.int32, device=device)
        self.hidden = torch.zeros(max_num_rows, hidden_size, dtype=dtype, device=device)
        self.inputs = [
            _decode_inputs(max_num_rows, block_table.shape[1], device)
            for block_table in table.block_tables
        ]
        self._sampling = _sampling(max_num_rows, device)

    def stage(self, host_slot: int, rows: list[int], positions: list[int]) -> None:
        """Uploads which rows work and the position of each row's last token known so far."""
        words = np.full(self._words.shape[0], -1, dtype=np.int32)
        words[0] = host_slot
        words[HEADER_WORDS : HEADER_WORDS + len(rows)] = rows
        first = HEADER_WORDS + self._stride
        words[first : first + len(positions)] = positions
        upload_into(self._words, words)

    def decode_inputs(self, group_idx: int, num_rows: int) -> DecodeInputs:
        full = self.inputs[group_idx]
        return DecodeInputs(
            token_ids=full.token_ids[:num_rows],
            positions=full.positions[:num_rows],
            seq_lens=full.seq_lens[:num_rows],
            slots=full.slots[:num_rows],
            block_table=full.block_table[:num_rows],
        )

    def sampling(self, num_rows: int, *, all_greedy: bool) -> SamplingTensors:
        full = self._sampling
        return dataclasses.replace(
            full,
            temperature=full.temperature[:num_rows],
            top_k=full.top_k[:num_rows],
            top_p=full.top_p[:num_rows],
            min_p=full.min_p[:num_rows],
            seeds=full.seeds[:num_rows],
            positions=full.positions[:num_rows],
            all_greedy=all_greedy,
            any_filter=not all_greedy,
        )


def _decode_inputs(num_rows: int, num_columns: int, device: torch.device) -> DecodeInputs:
    def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    return DecodeInputs(
        token_ids=zeros(torch.int32, num_rows),
        positions=zeros(torch.int64, num_rows),
        seq_lens=zeros(torch.int32, num_rows),
        slots=zeros(torch.int64, num_rows),
        block_table=zeros(torch.int32, num_rows, num_columns),
    )


def _sampling(num_rows: int, device: torch.device) -> SamplingTensors:
    def zeros(dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(num_rows, dtype=dtype, device=device)

    return SamplingTensors(
        temperature=zeros(torch.float32),
        top_k=zeros(torch.int32),
        top_p=zeros(torch.float32),
        min_p=zeros(torch.float32),
        seeds=zeros(torch.int64),
        positions=zeros(torch.int64),
        all_greedy=False,
        any_filter=True,
    )
