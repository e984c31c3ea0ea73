"""The runner's own memory of running sequences: one stable row each, on the device.

A decode step reads its input tokens from here, so that it can be launched before the scheduler
knows them. Rows are cleared when taken, never condensed. Knows no scheduler and no sampling.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from octavo_engine.batch import AdmittedRow, AppendedBlocks
from octavo_engine.sampling_params import SamplingParams


@dataclass(frozen=True)
class RowInfo:
    """What the host knows of a row for its whole stay."""

    params: SamplingParams
    seed: int
    num_prompt_tokens: int
    num_admitted_tokens: int
    """Known when the row was taken: the prompt, and what was generated before a preemption."""


class RowTable(Protocol):
    """What building inputs and sampling read of a table, whatever fills it."""

    @property
    def token_ids(self) -> torch.Tensor:
        """[rows, max_model_len + 1] int32."""
        ...

    @property
    def block_tables(self) -> list[torch.Tensor]:
        """For each KV group [rows, blocks of the longest sequence] int32."""
        ...

    def info(self, row: int) -> RowInfo: ...


class HostRows:
    """The host's side of a table: which rows are taken, and by what."""

    def __init__(self, max_num_rows: int) -> None:
        self._max_num_rows = max_num_rows
        self._infos: dict[int, RowInfo] = {}

    def take(self, admitted: AdmittedRow) -> None:
        row = admitted.row
        if not 0 <= row < self._max_num_rows:
            raise IndexError(f"row {row} is not below {self._max_num_rows}")
        self._infos[row] = RowInfo(
            params=admitted.params,
            seed=admitted.seed,
            num_prompt_tokens=admitted.num_prompt_tokens,
            num_admitted_tokens=len(admitted.token_ids),
        )

    def release(self, row: int) -> None:
        self._infos.pop(row, None)

    def info(self, row: int) -> RowInfo:
        return self._infos[row]


class RequestTable(HostRows):
    def __init__(
        self,
        *,
        max_num_rows: int,
        max_model_len: int,
        num_groups: int,
        block_size: int,
        device: torch.device,
    ) -> None:
        super().__init__(max_num_rows)
        # One column more: the token sampled after the last position still has a place.
        self.token_ids = torch.zeros(
            (max_num_rows, max_model_len + 1), dtype=torch.int32, device=device
        )
        num_columns = -(-max_model_len // block_size)
        self.block_tables = [
            torch.zeros((max_num_rows, num_columns), dtype=torch.int32, device=device)
            for _ in range(num_groups)
        ]

    def admit(self, admitted: AdmittedRow) -> None:
        self.take(admitted)
        row = admitted.row
        self._write(self.token_ids, row, 0, admitted.token_ids)
        for table, block_ids in zip(self.block_tables, admitted.block_tables, strict=True):
            table[row].zero_()
            self._write(table, row, 0, block_ids)

    def append(self, appended: AppendedBlocks) -> None:
        table = self.block_tables[appended.group_idx]
        self._write(table, appended.row, appended.first_idx, appended.block_ids)

    def set_sampled(
        self, rows: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
    ) -> None:
        """Writes the sampled token_ids[R] where the next step will read them."""
        self.token_ids[rows, positions] = token_ids.to(torch.int32)

    @staticmethod
    def _write(table: torch.Tensor, row: int, first: int, values: list[int]) -> None:
        if values:
            source = torch.from_numpy(np.array(values, dtype=np.int32))
            table[row, first : first + len(values)].copy_(source, non_blocking=True)
