"""The request table on the GPU: one block of int32 words, changed by one small upload a step.

    seeds (2 words each) | temperatures | top_p | min_p | top_k | block tables | token ids

A step's changes are collected as (offset, words) and written by one kernel before the step reads
them. Knows no scheduler and no model.
"""

from itertools import accumulate

import numpy as np
import torch

from octavo_engine.batch import AdmittedRow, AppendedBlocks
from octavo_engine.cuda.transfer import upload
from octavo_engine.errors import ConfigError
from octavo_engine.runner.request_table import HostRows
from octavo_engine.sampler.sampler import drawn_temperature, signed_64
from octavo_engine.sampling_params import SamplingParams
from octavo_kernels import SamplingTensors
from octavo_kernels.row_ops import write_words

PATCH_WORDS = 2**20
"""Changes uploaded at once: 8 MiB with their offsets."""
PATCH_ALIGNMENT = 64
"""Lengths are padded to it, so that one compiled kernel serves them all."""
SEEDS, SAMPLING, TABLES, TOKEN_IDS = 0, 1, 5, -1
"""Parts of the words: from SAMPLING on four numbers of a row, from TABLES on a part a group."""
_INT32_MAX = 2**31 - 1


class DeviceRowTable(HostRows):
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
        self._device = device
        num_columns = -(-max_model_len // block_size)
        # One column more: the token sampled after the last position still has a place.
        shapes = [
            (max_num_rows, 2),
            *[(max_num_rows,)] * 4,
            *[(max_num_rows, num_columns)] * num_groups,
            (max_num_rows, max_model_len + 1),
        ]
        sizes = [int(np.prod(shape)) for shape in shapes]
        *self._firsts, num_words = accumulate(sizes, initial=0)
        if num_words > _INT32_MAX:
            raise ConfigError(
                f"{max_num_rows} sequences of up to {max_model_len} tokens are too many for the "
                f"request table: {num_words} words, at most {_INT32_MAX}"
            )
        self._words = torch.zeros(num_words, dtype=torch.int32, device=device)
        parts = [
            self._words[first : first + size].view(shape)
            for first, size, shape in zip(self._firsts, sizes, shapes, strict=True)
        ]
        temperature, top_p, min_p, top_k = parts[SAMPLING:TABLES]
        self.sampling = SamplingTensors(
            seeds=parts[SEEDS].view(-1).view(torch.int64),
            temperature=temperature.view(torch.float32),
            top_p=top_p.view(torch.float32),
            min_p=min_p.view(torch.float32),
            top_k=top_k,
            positions=torch.empty(0, dtype=torch.int64, device=device),
            all_greedy=False,
            any_filter=True,
        )
        self._block_tables = parts[TABLES:TOKEN_IDS]
        self._token_ids = parts[TOKEN_IDS]
        self._num_columns = num_columns
        self._pending: list[tuple[int, np.ndarray]] = []

    @property
    def token_ids(self) -> torch.Tensor:
        return self._token_ids

    @property
    def block_tables(self) -> list[torch.Tensor]:
        return self._block_tables

    def admit(self, admitted: AdmittedRow) -> None:
        self.take(admitted)
        row = admitted.row
        self._change(self._firsts[SEEDS] + 2 * row, _seed_words(admitted.seed))
        for part, words in enumerate(_sampling_words(admitted.params), start=SAMPLING):
            self._change(self._firsts[part] + row, words)
        tokens_at = self._firsts[TOKEN_IDS] + row * self._token_ids.shape[1]
        self._change(tokens_at, np.array(admitted.token_ids, dtype=np.int32))
        for group_idx, block_ids in enumerate(admitted.block_tables):
            self._change_blocks(row, group_idx, 0, block_ids)

    def append(self, appended: AppendedBlocks) -> None:
        self._change_blocks(
            appended.row, appended.group_idx, appended.first_idx, appended.block_ids
        )

    def flush(self) -> None:
        """Launches the write of all changes since the last call."""
        if not self._pending:
            return
        offsets = np.concatenate(
            [np.arange(first, first + len(words), dtype=np.int32) for first, words in self._pending]
        )
        values = np.concatenate([words for _, words in self._pending])
        self._pending = []
        for start in range(0, len(values), PATCH_WORDS):
            chunk = slice(start, start + PATCH_WORDS)
            patch = upload(_padded(offsets[chunk], values[chunk]), self._device)
            write_words(self._words, patch[0], patch[1])

    def touch(self) -> None:
        """Launches a change that changes nothing, while no row is taken."""
        self._change(0, np.zeros(1, dtype=np.int32))
        self.flush()

    def _change_blocks(self, row: int, group_idx: int, first_idx: int, ids: list[int]) -> None:
        if first_idx + len(ids) > self._num_columns:
            raise IndexError(
                f"row {row} has no place for blocks {first_idx} to {first_idx + len(ids) - 1}"
            )
        at = self._firsts[TABLES + group_idx] + row * self._num_columns + first_idx
        self._change(at, np.array(ids, dtype=np.int32))

    def _change(self, first: int, words: np.ndarray) -> None:
        if len(words):
            self._pending.append((first, words))


def _padded(offsets: np.ndarray, values: np.ndarray) -> np.ndarray:
    """[2, N], N a multiple of PATCH_ALIGNMENT; the last change is repeated."""
    num_padding = -len(values) % PATCH_ALIGNMENT
    return np.stack([np.pad(array, (0, num_padding), mode="edge") for array in (offsets, values)])


def _seed_words(seed: int) -> np.ndarray:
    return np.array([signed_64(seed)], dtype=np.int64).view(np.int32)


def _sampling_words(params: SamplingParams) -> list[np.ndarray]:
    """temperature, top_p, min_p and top_k as words, in the order of the table."""
    floats = np.array([drawn_temperature(params), params.top_p, params.min_p], dtype=np.float32)
    top_k = np.array([min(params.top_k, _INT32_MAX)], dtype=np.int32)
    return [*floats.view(np.int32).reshape(3, 1), top_k]
