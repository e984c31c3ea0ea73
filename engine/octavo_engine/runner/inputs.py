"""From a batch's work to the tensors of a step: tokens, positions, pages, rows to sample.

The plan is made with numpy on the host; the gathering happens on the device from the request table.
"""

from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn import functional

from octavo_engine.batch import KVGroup, RowWork
from octavo_engine.layers.context import GroupStep, WantedTokens
from octavo_engine.model_config import last_group_idx
from octavo_engine.runner.request_table import RowTable
from octavo_engine.runner.wanted import are_all_tokens_wanted
from octavo_kernels import AttentionMetadata, plan_kv_write, prepare_attention


@dataclass(frozen=True)
class StepInputs:
    work: list[RowWork]
    """Rows of phase decode first, as the tensors have them."""
    rows: torch.Tensor
    """[R] int64: row of the request table."""
    token_ids: torch.Tensor
    """[T] int32."""
    positions: torch.Tensor
    """[T] int64."""
    token_rows: torch.Tensor
    """[T] int64: index of each token's row in this step, below R."""
    groups: tuple[GroupStep, ...]
    sampling: list[int]
    """Indices in `work` of the rows that sample."""
    sampling_tokens: torch.Tensor
    """[S] int64: the token of this step whose logits each of them samples from."""
    wanted: WantedTokens | None
    """Those of `sampling_tokens`, perhaps with surplus ones behind; None: all of the step's."""

    def copy_sampled(self, hidden: torch.Tensor, out: torch.Tensor) -> None:
        """hidden: of the wanted tokens -> out[S, hidden_size], of those that are sampled from."""
        if self.wanted is not None:
            out.copy_(hidden[: len(out)])
        else:
            torch.index_select(hidden, 0, self.sampling_tokens, out=out)


def order_work(work: list[RowWork]) -> list[RowWork]:
    """Decodes first, the longest first; then the rest in order.

    A decode of several tokens counts as prefill. Neighbours of like length share their products on
    a CPU.
    """
    decodes = [item for item in work if _is_single_decode(item)]
    others = [item for item in work if not _is_single_decode(item)]
    return sorted(decodes, key=lambda item: -item.start) + others


def _is_single_decode(item: RowWork) -> bool:
    return item.phase == "decode" and item.num_tokens == 1


class InputsBuilder:
    """Makes a step's tensors; holds the model's facts that every step needs."""

    def __init__(
        self,
        groups: tuple[KVGroup, ...],
        *,
        num_q_heads: int,
        num_kv_heads: int,
        block_size: int,
        device: torch.device,
        wanted_sizes: list[int] | None = None,
    ) -> None:
        """wanted_sizes: ascending; of wanted tokens there are made up to the next of these by such
        that nobody reads, since a GPU loads a library's kernel for 0.15 s when it first meets a
        size. None: no more than there are."""
        self._wanted_sizes = wanted_sizes
        self._groups = groups
        self._last_group_idx = last_group_idx(groups)
        self._num_q_heads = num_q_heads
        self._num_kv_heads = num_kv_heads
        self._block_size = block_size
        self._device = device

    def build(self, batch_work: list[RowWork], table: RowTable) -> StepInputs:
        work = order_work(batch_work)
        starts = np.array([item.start for item in work], dtype=np.int64)
        lens = np.array([item.num_tokens for item in work], dtype=np.int64)
        query_start = np.zeros(len(work) + 1, dtype=np.int64)
        np.cumsum(lens, out=query_start[1:])
        token_rows = np.repeat(np.arange(len(work)), lens)
        positions = np.arange(query_start[-1]) - (query_start[:-1] - starts)[token_rows]
        sampling = [idx for idx, item in enumerate(work) if item.samples]

        rows = self._put(np.array([item.row for item in work], dtype=np.int64))
        device_positions = self._put(positions)
        device_token_rows = self._put(token_rows)
        row_of_token = rows[device_token_rows]
        sampling_tokens = self._put(query_start[1:][sampling] - 1)
        base = self._attention(work, query_start, starts + lens, device_positions)
        wanted = None
        if not are_all_tokens_wanted(work, [table.info(item.row) for item in work]):
            wanted = self._wanted([work[idx] for idx in sampling], base, table, sampling_tokens)
        return StepInputs(
            work=work,
            rows=rows,
            token_ids=table.token_ids[row_of_token, device_positions],
            positions=device_positions,
            token_rows=device_token_rows,
            groups=tuple(
                self._group_step(idx, base, table, rows, row_of_token, device_positions)
                for idx in range(len(self._groups))
            ),
            sampling=sampling,
            sampling_tokens=sampling_tokens,
            wanted=wanted,
        )

    def _attention(
        self,
        work: list[RowWork],
        query_start: np.ndarray,
        seq_lens: np.ndarray,
        positions: torch.Tensor,
    ) -> AttentionMetadata:
        """The metadata of a step without a block table."""
        query_lens = [item.num_tokens for item in work]
        return AttentionMetadata(
            query_start=self._put(query_start.astype(np.int32)),
            seq_lens=self._put(seq_lens.astype(np.int32)),
            block_table=torch.empty((len(work), 0), dtype=torch.int32, device=self._device),
            positions=positions,
            num_rows=len(work),
            num_decode_rows=sum(map(_is_single_decode, work)),
            max_query_len=max(query_lens),
            max_seq_len=int(seq_lens.max()),
            block_size=self._block_size,
            seq_lens_host=seq_lens.tolist(),
            query_lens_host=query_lens,
        )

    def _wanted(
        self,
        sampling: list[RowWork],
        base: AttentionMetadata,
        table: RowTable,
        tokens: torch.Tensor,
    ) -> WantedTokens:
        """tokens: the last of each row that samples."""
        if not sampling:
            return WantedTokens(tokens, None)
        num_rows = self._padded(len(sampling))
        num_surplus = num_rows - len(sampling)
        # A surplus row has no key; its query is the step's first token.
        rows = self._put(
            np.array([item.row for item in sampling] + [sampling[0].row] * num_surplus)
        )
        seq_lens = [item.start + item.num_tokens for item in sampling] + [0] * num_surplus
        tokens = functional.pad(tokens, (0, num_surplus))
        attention = AttentionMetadata(
            query_start=torch.arange(num_rows + 1, dtype=torch.int32, device=self._device),
            seq_lens=self._put(np.array(seq_lens, dtype=np.int32)),
            block_table=torch.empty((num_rows, 0), dtype=torch.int32, device=self._device),
            positions=base.positions[tokens],
            num_rows=num_rows,
            num_decode_rows=num_rows,
            max_query_len=1,
            max_seq_len=max(seq_lens),
            block_size=self._block_size,
            seq_lens_host=seq_lens,
            query_lens_host=[1] * num_rows,
        )
        return WantedTokens(tokens, self._prepared(self._last_group_idx, attention, table, rows))

    def _padded(self, num_wanted: int) -> int:
        sizes = self._wanted_sizes
        return num_wanted if sizes is None else sizes[bisect_left(sizes, num_wanted)]

    def _group_step(
        self,
        group_idx: int,
        base: AttentionMetadata,
        table: RowTable,
        rows: torch.Tensor,
        row_of_token: torch.Tensor,
        positions: torch.Tensor,
    ) -> GroupStep:
        block_table = table.block_tables[group_idx]
        blocks = block_table[row_of_token, positions // self._block_size].long()
        slots = blocks * self._block_size + positions % self._block_size
        return GroupStep(
            attention=self._prepared(group_idx, base, table, rows),
            slots=slots,
            cache_rows=plan_kv_write(
                slots, num_kv_heads=self._num_kv_heads, block_size=self._block_size
            ),
        )

    def _prepared(
        self, group_idx: int, base: AttentionMetadata, table: RowTable, rows: torch.Tensor
    ) -> AttentionMetadata:
        """base with the group's pages of these rows of the request table."""
        num_columns = -(-base.max_seq_len // self._block_size)
        return prepare_attention(
            replace(base, block_table=table.block_tables[group_idx][rows, :num_columns]),
            num_q_heads=self._num_q_heads,
            num_kv_heads=self._num_kv_heads,
            window=self._groups[group_idx].window,
        )

    def _put(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        if self._device.type == "cpu":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)


def rotated_lens(inputs: StepInputs, table: RowTable, *, of_all_known: bool) -> torch.Tensor:
    """[T]: the sequence length each token is rotated for where the rotation depends on it: its
    prompt's for the prompt, for a generated token the length that it makes.

    of_all_known: for tokens generated before the row was taken too, the length known then.
    """
    infos = [table.info(item.row) for item in inputs.work]
    known = np.array(
        [info.num_admitted_tokens if of_all_known else info.num_prompt_tokens for info in infos]
    )
    device = inputs.positions.device
    known_lens = torch.from_numpy(known).to(device)[inputs.token_rows]
    return torch.maximum(known_lens, inputs.positions + 1)
