"""Runs batches on one device: request table, pages, model, sampler.

Steps run on one worker thread in the order of their launch, so that the caller can schedule the
next meanwhile. Knows no scheduler and no text; ranks are several of these, fed the same batches:
rank 0 chooses the tokens for all.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING

import torch

from octavo_engine.batch import (
    AdmittedRow,
    Batch,
    KVGroup,
    RowWork,
)
from octavo_engine.layers.context import RopeStep, StepContext
from octavo_engine.messages import EngineInfo
from octavo_engine.models.protocol import Model
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.runner.inputs import InputsBuilder, StepInputs, rotated_lens
from octavo_engine.runner.kv_cache import KVCache
from octavo_engine.runner.prompt_logprobs import prompt_logprobs
from octavo_engine.runner.request_table import RequestTable
from octavo_engine.runner.rope_tables import RopeTables
from octavo_engine.runner.step_results import HostCopy, LaunchedStep, RawStep
from octavo_engine.sampler import SampledRow, Sampler, SampleWork

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler


class ModelRunner:
    def __init__(
        self,
        model: Model,
        *,
        info: EngineInfo,
        kv_groups: tuple[KVGroup, ...],
        cache: KVCache,
        num_host_blocks: int,
        inputs: InputsBuilder,
        device: torch.device,
        compiler: "GrammarCompiler | None" = None,
        group: Group | None = None,
    ) -> None:
        """compiler: for structured output. group: the ranks that share the model."""
        self._group = group or SoloGroup()
        self._model = model
        self._info = info
        self._kv_groups = kv_groups
        self._cache = cache
        self._num_host_blocks = num_host_blocks
        self._inputs = inputs
        self._device = device
        self._ropes = RopeTables(model.ropes, max_model_len=info.max_model_len, device=device)
        self._table = RequestTable(
            max_num_rows=info.max_num_seqs,
            max_model_len=info.max_model_len,
            num_groups=len(kv_groups),
            block_size=info.block_size,
            device=device,
        )
        self._sampler = Sampler(info.vocab_size, device, compiler)
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="octavo-runner")

    @property
    def info(self) -> EngineInfo:
        return self._info

    @property
    def kv_groups(self) -> tuple[KVGroup, ...]:
        return self._kv_groups

    @property
    def num_host_blocks(self) -> int:
        return self._num_host_blocks

    def launch(self, batch: Batch) -> LaunchedStep:
        return LaunchedStep(self._worker.submit(self._step, batch))

    def close(self) -> None:
        """Waits for the steps that were launched."""
        self._worker.shutdown(wait=True)

    @torch.inference_mode()
    def _step(self, batch: Batch) -> RawStep:
        started_s = perf_counter()
        result = RawStep(step_id=batch.step_id, started_s=started_s, failed_rows=self._apply(batch))
        if batch.work:
            result = self._run(batch.work, result)
        is_done = self._device.type == "cpu"
        return replace(result, finished_s=perf_counter() if is_done else None)

    def _apply(self, batch: Batch) -> dict[int, str]:
        """Brings table and pages up to date; returns the rows whose own parameters failed."""
        for row in batch.released_rows:
            self._table.release(row)
            self._sampler.release(row)
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
        return failed

    def _admit(self, admitted: AdmittedRow) -> str | None:
        self._table.admit(admitted)
        if self._group.rank != 0:
            return None
        try:
            self._sampler.admit(admitted.row, admitted.params)
        except ValueError as error:
            return str(error)
        return None

    def _run(self, batch_work: list[RowWork], result: RawStep) -> RawStep:
        inputs = self._inputs.build(batch_work, self._table)
        context = StepContext(inputs.groups, self._rope_step(inputs), inputs.wanted)
        hidden = self._model.hidden_states(inputs.token_ids, context, self._cache.layers)
        found = prompt_logprobs(self._model, self._table, inputs, hidden)
        result = replace(result, prompt_logprobs=found)
        if not inputs.sampling:
            return result
        work = [self._sample_work(inputs.work[idx]) for idx in inputs.sampling]
        last = hidden.new_empty(len(work), hidden.shape[1])
        inputs.copy_sampled(hidden, last)
        takes_largest = self._sampler.takes_largest(work)
        logits = self._model.narrow_logits(last) if takes_largest else self._model.logits(last)
        sampled = self._sample(logits, work)
        self._table.set_sampled(
            inputs.rows[inputs.token_rows[inputs.sampling_tokens]],
            inputs.positions[inputs.sampling_tokens] + 1,
            sampled.token_ids,
        )
        return replace(
            result,
            rows=[item.row for item in work],
            num_alternatives=[item.info.params.logprobs for item in work],
            failed_rows=result.failed_rows | self._sampler.take_failures(),
            sampled=HostCopy.start(sampled, self._device),
        )

    def _sample(self, logits: torch.Tensor, work: list[SampleWork]) -> SampledRow:
        if self._group.rank == 0:
            sampled = self._sampler.sample(logits, work, self._table)
        else:
            ids = torch.empty(len(work), dtype=torch.int64, device=self._device)
            sampled = SampledRow(ids, None)
        self._group.broadcast(sampled.token_ids)
        return sampled

    def _sample_work(self, item: RowWork) -> SampleWork:
        return SampleWork(
            row=item.row,
            info=self._table.info(item.row),
            position=item.start + item.num_tokens,
        )

    def _rope_step(self, inputs: StepInputs) -> tuple[RopeStep, ...]:
        lens = None
        if self._ropes.needs_seq_lens:
            of_all_known = self._ropes.turns_whole_sequences
            lens = rotated_lens(inputs, self._table, of_all_known=of_all_known)
        return self._ropes.step(inputs.positions, lens)
