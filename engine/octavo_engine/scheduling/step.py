"""The step being built: what the running and the waiting sequences add to it, as one batch."""

from dataclasses import dataclass, field

from octavo_engine.batch import AdmittedRow, AppendedBlocks, Batch, BlockCopy, RowWork
from octavo_engine.scheduling.request import Sequence
from octavo_engine.scheduling.state import InFlightStep, SchedulerState


@dataclass(slots=True)
class StepBuild:
    step_id: int
    prefill_left: int
    """Tokens of prefill that the budget still allows."""
    work: list[RowWork] = field(default_factory=list)
    rows: dict[int, Sequence] = field(default_factory=dict)
    prefilling: list[Sequence] = field(default_factory=list)
    admitted: list[AdmittedRow] = field(default_factory=list)
    appended: list[AppendedBlocks] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    swap_in: list[BlockCopy] = field(default_factory=list)
    num_samples: int = 0
    num_prefill_tokens: int = 0
    is_short_of_pages: bool = False
    """A running sequence waits for pages: nobody new may take them."""
    failed: set[str] = field(default_factory=set)
    """Ids of requests that are to end once the step is on its way."""

    def add_decode(self, seq: Sequence) -> None:
        row, start = seq.row, seq.num_computed
        assert row is not None
        self.work.append(RowWork(row, start, 1, True, "decode"))
        self.rows[row] = seq
        self.num_samples += 1
        seq.num_computed = start + 1
        seq.num_inflight += 1

    def add_prefill(self, seq: Sequence, end: int) -> None:
        """Computes known tokens up to `end`; the last known token's step samples the next."""
        row, start = seq.row, seq.num_computed
        assert row is not None
        samples = end == len(seq.token_ids)
        self.work.append(RowWork(row, start, end - start, samples, "prefill"))
        self.rows[row] = seq
        self.prefilling.append(seq)
        self.prefill_left -= end - start
        self.num_prefill_tokens += end - start
        seq.num_computed = end
        if samples:
            self.num_samples += 1
            seq.num_inflight += 1
            seq.is_prefilling = False
            seq.prompt_step = self.step_id

    def add_admitted(self, seq: Sequence) -> None:
        """Copies what the sequence will change: a batch is data and stays as it was launched."""
        assert seq.row is not None
        self.admitted.append(
            AdmittedRow(
                row=seq.row,
                token_ids=list(seq.token_ids),
                num_prompt_tokens=seq.num_prompt_tokens,
                params=seq.request.spec.params,
                seed=seq.seed,
                block_tables=[list(table) for table in seq.block_tables],
            )
        )

    def launch_from(self, state: SchedulerState, num_context_tokens: int) -> Batch:
        """Seals the step: from here on it counts as in flight."""
        state.inflight.append(
            InFlightStep(
                self.step_id,
                self.rows,
                self.num_samples,
                self.num_prefill_tokens,
                len(self.work) - len(self.prefilling),
                num_context_tokens,
            )
        )
        state.last_launched = self.step_id
        state.counters.steps += 1
        batch = Batch(
            step_id=self.step_id,
            released_rows=state.released_rows,
            swap_out=state.swap_out,
            swap_in=self.swap_in,
            copies=self.copies,
            admitted=self.admitted,
            appended=self.appended,
            work=self.work,
        )
        state.released_rows, state.swap_out = [], []
        return batch
