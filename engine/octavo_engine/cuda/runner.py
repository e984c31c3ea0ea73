"""Runs batches on one GPU: decode steps and small mixed ones as captured graphs, others eagerly.

Everything of a step is enqueued by `launch` in the caller's thread and nothing waits for the
device; ids reach the host through pinned memory. Knows no scheduler and no text. Without a capture
all of it also runs on a CPU, which is how its logic is tested.
"""

import msgspec
import torch

import octavo_kernels
from octavo_engine.batch import AdmittedRow, Batch, KVGroup, PromptLogprobs, RowWork
from octavo_engine.cuda.buffers import StepBuffers
from octavo_engine.cuda.decode import DecodeForward, SampleTail, Shapes
from octavo_engine.cuda.fused_pass import FusedPass
from octavo_engine.cuda.graphs import CapturedFunction, ends_of_powers, graph_sizes
from octavo_engine.cuda.id_ring import IdRing
from octavo_engine.cuda.launched import LaunchedCudaStep, StepTokens
from octavo_engine.cuda.mixed import MixedForward, wanted_sizes
from octavo_engine.cuda.rehearsal import Rehearsal
from octavo_engine.cuda.row_table import DeviceRowTable
from octavo_engine.cuda.transfer import Mark, download
from octavo_engine.layers.context import StepContext
from octavo_engine.messages import EngineInfo
from octavo_engine.models.protocol import Model
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.runner.inputs import InputsBuilder, StepInputs, rotated_lens
from octavo_engine.runner.kv_cache import KVCache
from octavo_engine.runner.logprobs import TopLogprobs
from octavo_engine.runner.prompt_logprobs import prompt_logprobs
from octavo_engine.runner.rope_tables import RopeTables
from octavo_engine.sampler import Sampler, SampleWork
from octavo_engine.sampler.sampler import is_greedy
from octavo_engine.structured.compiler import GrammarCompiler


class CudaRunner:
    def __init__(
        self,
        model: Model,
        *,
        info: EngineInfo,
        shapes: Shapes,
        cache: KVCache,
        num_host_blocks: int,
        table: DeviceRowTable,
        buffers: StepBuffers,
        ropes: RopeTables,
        fused: FusedPass | None,
        rehearsal: Rehearsal | None,
        mixed: MixedForward | None,
        has_static_decode: bool,
        device: torch.device,
        compiler: GrammarCompiler | None = None,
        group: Group | None = None,
    ) -> None:
        """has_static_decode: the model's decode step reads nothing back from the device and is
        the same kernels whatever the rows hold. fused: the model for decode steps of few rows.
        rehearsal: of decode steps. mixed: captured steps with prompts in them, where they are
        wanted. compiler: for structured output. group: the ranks that share the model."""
        self._group = group or SoloGroup()
        self._model = model
        self._info = info
        self._shapes = shapes
        self._cache = cache
        self._num_host_blocks = num_host_blocks
        self._table = table
        self._buffers = buffers
        self._ropes = ropes
        self._device = device
        self._inputs = InputsBuilder(
            shapes.groups,
            num_q_heads=shapes.num_q_heads,
            num_kv_heads=shapes.num_kv_heads,
            block_size=shapes.block_size,
            device=device,
            wanted_sizes=wanted_sizes(info.max_num_seqs),
        )
        self._mixed = mixed
        self._sampler = Sampler(info.vocab_size, device, compiler)
        self._ring = IdRing(info.max_num_seqs, device)
        self._tail = SampleTail(model, table, buffers, self._ring, self._group)
        sizes = graph_sizes(info.max_num_seqs)
        self._has_static_decode = has_static_decode
        forward = DecodeForward(model, cache.layers, table, buffers, ropes, shapes, fused)
        rehearse = None
        if rehearsal is not None:
            few = rehearsal.caches(cache.layers)
            rehearse = DecodeForward(
                rehearsal.model, few, table, buffers, ropes, shapes, rehearsal.fused
            ).run
        self._decode = CapturedFunction(forward.run, sizes, rehearse)
        self._sample_greedy = CapturedFunction(self._tail.run_greedy, sizes)
        self._sample_drawing = CapturedFunction(self._tail.run_drawing, sizes)
        self._drawing_rows: set[int] = set()
        self._special_rows: set[int] = set()
        """Rows whose logits are changed, or looked at, beyond what the captured tail does."""

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self._shapes.groups

    @property
    def num_host_blocks(self) -> int:
        return self._num_host_blocks

    def captured_functions(self) -> list[CapturedFunction]:
        """In the order of their need for memory."""
        mixed = [self._mixed.captured] if self._mixed is not None else []
        decode = [self._decode] if self._has_static_decode else []
        return [*mixed, *decode, self._sample_greedy, self._sample_drawing]

    def stage_padding(self) -> None:
        """Afterwards a captured function touches no row."""
        self._buffers.stage(0, [], [])
        if self._mixed is not None:
            self._mixed.stage_padding()

    def touch_uncaptured(self) -> None:
        """Launches the table's changes, what rows with special wishes sample by, and the last
        layer of eager steps, for `compile_only`."""
        self._table.touch()
        logits = torch.zeros(self._info.max_num_seqs, self._info.vocab_size, device=self._device)
        for num_rows in ends_of_powers(graph_sizes(self._info.max_num_seqs)):
            for all_greedy in (True, False):
                params = self._buffers.sampling(num_rows, all_greedy=all_greedy)
                octavo_kernels.sample(logits[:num_rows], params)
                octavo_kernels.sample(logits[:num_rows], params, [None] * num_rows)
            if self._mixed is not None and self._device.type == "cuda":
                self._mixed.rehearse_last_layer(num_rows)

    def close(self) -> None:
        """Waits for the steps that were launched. Ranks can part only when no graph holds one of
        their sums any more."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        for function in self.captured_functions():
            function.drop()

    @torch.inference_mode()
    def launch(self, batch: Batch) -> LaunchedCudaStep:
        started = Mark(self._device)
        failed_rows = self._apply(batch)
        slot = self._ring.take()
        sampling, found, num_padded_rows = self._forward(batch.work, slot)
        logprobs = self._sample(sampling) if sampling else None
        ended = Mark(self._device)
        tokens = None
        if sampling:
            tokens = StepTokens(
                rows=[item.row for item in sampling],
                ids=self._ring.fill(slot, len(sampling), ended),
                logprobs=logprobs,
                num_alternatives=[] if logprobs is None else self._num_alternatives(sampling),
            )
        return LaunchedCudaStep(
            step_id=batch.step_id,
            started=started,
            ended=ended,
            failed_rows=failed_rows | self._sampler.take_failures(),
            prompt_logprobs=found,
            tokens=tokens,
            num_padded_rows=num_padded_rows or 0,
            is_graph=num_padded_rows is not None,
        )

    def _apply(self, batch: Batch) -> dict[int, str]:
        """Brings table and pages up to date; returns the rows whose own parameters failed."""
        for row in batch.released_rows:
            self._release(row)
        self._cache.swap_out(batch.swap_out)
        self._cache.swap_in(batch.swap_in)
        self._cache.copy(batch.copies)
        failed: dict[int, str] = {}
        for admitted in batch.admitted:
            reason = self._admit(admitted)
            if reason is not None:
                failed[admitted.row] = reason
        for appended in batch.appended:
            self._table.append(appended)
        self._table.flush()
        return failed

    def _release(self, row: int) -> None:
        self._table.release(row)
        self._sampler.release(row)
        self._drawing_rows.discard(row)
        self._special_rows.discard(row)

    def _admit(self, admitted: AdmittedRow) -> str | None:
        row, params = admitted.row, admitted.params
        self._release(row)
        self._table.admit(admitted)
        if not is_greedy(params):
            self._drawing_rows.add(row)
        # The same on all ranks, whatever becomes of a grammar: eager and captured steps differ in
        # what ranks exchange.
        if params.grammar is not None or params.logprobs is not None:
            self._special_rows.add(row)
        if self._group.rank != 0:  # it chooses no tokens
            params = msgspec.structs.replace(params, grammar=None)
        try:
            is_adjusted = self._sampler.admit(row, params)
        except ValueError as error:
            return str(error)
        if is_adjusted:
            self._special_rows.add(row)
        return None

    def _forward(
        self, work: list[RowWork], slot: int
    ) -> tuple[list[RowWork], list[PromptLogprobs], int | None]:
        """Leaves the hidden states of the rows that sample in the buffers, in the order returned,
        with these rows staged. Last comes a graph's padding, see `CapturedFunction.run`."""
        if not work:
            return [], [], None
        if self._has_static_decode and all(map(_is_plain_decode, work)):
            self._stage(slot, work)
            return work, [], self._decode.run(len(work))
        return *self._forward_mixed(work, slot), None

    def _forward_mixed(
        self, work: list[RowWork], slot: int
    ) -> tuple[list[RowWork], list[PromptLogprobs]]:
        inputs = self._inputs.build(work, self._table)
        hidden = self._hidden_states(inputs)
        found = prompt_logprobs(self._model, self._table, inputs, hidden)
        sampling = [inputs.work[idx] for idx in inputs.sampling]
        if sampling:
            self._stage(slot, sampling)
            inputs.copy_sampled(hidden, self._buffers.hidden[: len(sampling)])
        return sampling, found

    def _hidden_states(self, inputs: StepInputs) -> torch.Tensor:
        """Of the wanted tokens, valid until the next step."""
        if self._mixed is not None and self._mixed.can_run(inputs):
            return self._mixed.run(inputs)
        lens = None
        if self._ropes.needs_seq_lens:
            of_all_known = self._ropes.turns_whole_sequences
            lens = rotated_lens(inputs, self._table, of_all_known=of_all_known)
        ropes = self._ropes.step(inputs.positions, lens)
        context = StepContext(inputs.groups, ropes, inputs.wanted)
        return self._model.hidden_states(inputs.token_ids, context, self._cache.layers)

    def _stage(self, slot: int, sampling: list[RowWork]) -> None:
        rows = [item.row for item in sampling]
        last_positions = [item.start + item.num_tokens - 1 for item in sampling]
        self._buffers.stage(slot, rows, last_positions)

    def _sample(self, sampling: list[RowWork]) -> TopLogprobs | None:
        """Chooses the staged rows' tokens and stores them; logprobs when some row wants them."""
        num_rows = len(sampling)
        if self._holds_any(self._special_rows, sampling):
            return self._sample_eagerly(sampling)
        if self._holds_any(self._drawing_rows, sampling):
            self._sample_drawing.run(num_rows)
        else:
            self._sample_greedy.run(num_rows)
        return None

    def _sample_eagerly(self, sampling: list[RowWork]) -> TopLogprobs | None:
        logits = self._model.logits(self._buffers.hidden[: len(sampling)])
        work = [
            SampleWork(
                row=item.row,
                info=self._table.info(item.row),
                position=item.start + item.num_tokens,
            )
            for item in sampling
        ]
        if self._group.rank != 0:
            self._tail.commit_broadcast(len(sampling))
            return None
        sampled = self._sampler.sample(logits, work, self._table)
        self._group.broadcast(sampled.token_ids)
        self._tail.commit(sampled.token_ids, len(sampling))
        return None if sampled.logprobs is None else sampled.logprobs.map(download)

    def _num_alternatives(self, sampling: list[RowWork]) -> list[int | None]:
        return [self._table.info(item.row).params.logprobs for item in sampling]

    @staticmethod
    def _holds_any(rows: set[int], sampling: list[RowWork]) -> bool:
        return bool(rows) and any(item.row in rows for item in sampling)


def _is_plain_decode(item: RowWork) -> bool:
    return item.phase == "decode" and item.num_tokens == 1 and item.samples
