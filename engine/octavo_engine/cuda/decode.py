"""The two captured halves of a decode step over fixed buffers: the forward pass, then sampling.

    DecodeForward   one token a row: inputs from the request table, the model, hidden states
    SampleTail      head, choice of a token a row, tokens into the table and to the host

The second half also ends steps whose first half ran eagerly. Knows no batch.
"""

from dataclasses import dataclass

import torch

import octavo_kernels
from octavo_engine.batch import KVGroup
from octavo_engine.cuda.buffers import StepBuffers
from octavo_engine.cuda.fused_pass import FusedPass
from octavo_engine.cuda.id_ring import IdRing
from octavo_engine.cuda.row_table import DeviceRowTable
from octavo_engine.layers.context import GroupStep, LayerCache, StepContext
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.protocol import Model
from octavo_engine.parallel.group import Group
from octavo_engine.runner.rope_tables import RopeTables
from octavo_kernels import AttentionMetadata, SamplingTensors, prepare_attention
from octavo_kernels.row_ops import commit_largest, commit_sampled, decode_inputs, sampling_inputs


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """The model's facts that a decode step needs."""

    groups: tuple[KVGroup, ...]
    num_q_heads: int
    num_kv_heads: int
    block_size: int
    max_model_len: int

    def plan_decodes(
        self,
        group_idx: int,
        *,
        query_start: torch.Tensor,
        seq_lens: torch.Tensor,
        block_table: torch.Tensor,
        positions: torch.Tensor,
    ) -> AttentionMetadata:
        """Rows of one query each as the layers of a KV group see them; launches their plan. Nothing
        depends on what the tensors hold: it can be captured."""
        num_rows = len(seq_lens)
        metadata = AttentionMetadata(
            query_start=query_start,
            seq_lens=seq_lens,
            block_table=block_table,
            positions=positions,
            num_rows=num_rows,
            num_decode_rows=num_rows,
            max_query_len=1,
            max_seq_len=self.max_model_len,
            block_size=self.block_size,
            # A captured step cannot read lengths back; the CPU reference reads nothing but these.
            seq_lens_host=seq_lens.tolist() if seq_lens.is_cpu else [],
            query_lens_host=[1] * num_rows if seq_lens.is_cpu else [],
        )
        return prepare_attention(
            metadata,
            num_q_heads=self.num_q_heads,
            num_kv_heads=self.num_kv_heads,
            window=self.groups[group_idx].window,
        )


class DecodeForward:
    def __init__(
        self,
        model: Model,
        caches: list[LayerCache],
        table: DeviceRowTable,
        buffers: StepBuffers,
        ropes: RopeTables,
        shapes: Shapes,
        fused: FusedPass | None,
    ) -> None:
        """fused: the same model for few rows."""
        self._fused = fused
        self._model = model
        self._caches = caches
        self._table = table
        self._buffers = buffers
        self._ropes = ropes
        self._shapes = shapes

    def run(self, num_rows: int) -> None:
        """Computes the staged rows and leaves their hidden states in the buffers."""
        buffers = self._buffers
        groups = tuple(self._group(idx, num_rows) for idx in range(len(self._shapes.groups)))
        inputs = buffers.decode_inputs(0, num_rows)
        context = StepContext(groups=groups, ropes=self._ropes.step(inputs.positions, None))
        out = buffers.hidden[:num_rows]
        if self._fused is not None and num_rows <= self._fused.max_tokens:
            self._fused.hidden_states_into(out, inputs.token_ids, context, self._caches)
        else:
            out.copy_(self._model.hidden_states(inputs.token_ids, context, self._caches))

    def _group(self, group_idx: int, num_rows: int) -> GroupStep:
        buffers, shapes = self._buffers, self._shapes
        inputs = buffers.decode_inputs(group_idx, num_rows)
        decode_inputs(
            buffers.rows[:num_rows],
            buffers.positions[:num_rows],
            self._table.token_ids,
            self._table.block_tables[group_idx],
            inputs,
            block_size=shapes.block_size,
        )
        attention = shapes.plan_decodes(
            group_idx,
            query_start=buffers.query_start[: num_rows + 1],
            seq_lens=inputs.seq_lens,
            block_table=inputs.block_table,
            positions=inputs.positions,
        )
        return GroupStep(attention=attention, slots=inputs.slots)


class SampleTail:
    def __init__(
        self,
        model: Model,
        table: DeviceRowTable,
        buffers: StepBuffers,
        ring: IdRing,
        group: Group,
    ) -> None:
        self._group = group
        self._model = model
        self._shared = model if isinstance(model, Decoder) and group.size > 1 else None
        self._table = table
        self._buffers = buffers
        self._ring = ring

    def run_greedy(self, num_rows: int) -> None:
        if self._shared is not None:
            self.commit(self._shared.largest(self._buffers.hidden[:num_rows]), num_rows)
            return
        buffers = self._buffers
        commit_largest(
            self._model.narrow_logits(buffers.hidden[:num_rows]),
            buffers.rows[:num_rows],
            buffers.positions[:num_rows],
            self._table.token_ids,
            self._ring.ids,
            buffers.host_slot,
        )

    def run_drawing(self, num_rows: int) -> None:
        """Rows of any temperature and filter; greedy ones stay exact."""
        params = self._buffers.sampling(num_rows, all_greedy=False)
        rows, positions = self._buffers.rows[:num_rows], self._buffers.positions[:num_rows]
        sampling_inputs(rows, positions, self._table.sampling, params)
        self._sample(num_rows, params)

    def _sample(self, num_rows: int, params: SamplingTensors) -> None:
        logits = self._model.narrow_logits(self._buffers.hidden[:num_rows])
        ids = octavo_kernels.sample(logits, params)
        self._group.broadcast(ids)
        self.commit(ids, num_rows)

    def commit_broadcast(self, num_rows: int) -> None:
        """For a rank that does not choose: the ids of rank 0."""
        ids = torch.empty(num_rows, dtype=torch.int64, device=self._buffers.rows.device)
        self._group.broadcast(ids)
        self.commit(ids, num_rows)

    def commit(self, ids: torch.Tensor, num_rows: int) -> None:
        """ids[num_rows], sampled for the staged rows, into the table and the staged host slot."""
        buffers = self._buffers
        commit_sampled(
            ids,
            buffers.rows[:num_rows],
            buffers.positions[:num_rows],
            self._table.token_ids,
            self._ring.ids,
            buffers.host_slot,
        )
