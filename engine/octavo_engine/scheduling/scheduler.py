"""Who works in the next step: one token budget, decodes always, prefill in chunks beside them.

    schedule() -> Batch   while the step before may still run
    commit(result)        when the oldest step in flight has ended (`commit.py`)
    take_deltas()         what the streams should get

Pure data in, pure data out: it knows no thread, no runner and no torch. A request that cannot be
handled fails alone; anything else that goes wrong is raised.
"""

from collections.abc import Callable

import structlog

from octavo_engine.batch import Batch, StepResult
from octavo_engine.messages import REQUEST_FAILED, EngineRequest, RequestDelta
from octavo_engine.scheduling.admission import DoorLimits, make_request
from octavo_engine.scheduling.admit import admit, make_way_for_urgent
from octavo_engine.scheduling.block_tables import BlockTables
from octavo_engine.scheduling.blocks import BlockPool
from octavo_engine.scheduling.commit import commit_step
from octavo_engine.scheduling.limits import SchedulerLimits
from octavo_engine.scheduling.request import Sequence, SequenceState
from octavo_engine.scheduling.state import SchedulerState
from octavo_engine.scheduling.step import StepBuild
from octavo_engine.scheduling.step_time import StepTimeModel

log = structlog.get_logger(__name__)


class Scheduler:
    def __init__(
        self,
        tables: BlockTables,
        limits: SchedulerLimits,
        door: DoorLimits,
        num_host_blocks: int,
        draw_seed: Callable[[], int],
    ) -> None:
        host_pool = BlockPool(num_host_blocks) if num_host_blocks > 1 else None
        self.state = SchedulerState(tables, host_pool, limits.max_num_seqs, door)
        self._limits = limits
        self._door = door
        self._draw_seed = draw_seed
        self._num_sequences = 0
        target_s = limits.target_itl_s
        self._step_time = None if target_s is None else StepTimeModel(target_s)

    # Requests in and out.

    def add(self, spec: EngineRequest) -> None:
        """Queues a request that `admission.verify_request` has let in."""
        request = make_request(
            spec, self._door, self._limits.priority_ageing_s, self._num_sequences, self._draw_seed
        )
        self._num_sequences += len(request.sequences)
        self.state.requests[spec.request_id] = request
        self.state.ledger.submitted += 1
        self.state.counters.prompt_tokens += len(spec.prompt_token_ids)
        self.state.queue.push(request.sequences[0])

    def abort(self, request_id: str) -> None:
        """Ends what is left of a request; unknown and ended ones are ignored."""
        request = self.state.requests.get(request_id)
        if request is not None:
            self.state.end_request(request, "abort")

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        """Ends one sequence because of its text; unknown and ended ones are ignored."""
        request = self.state.requests.get(request_id)
        if request is None or not 0 <= index < len(request.sequences):
            return
        seq = request.sequences[index]
        if seq.state is not SequenceState.ENDED:
            self.state.end(seq, "stop", stop_reason=stop_reason)

    def fail(self, request_id: str, message: str) -> None:
        request = self.state.requests.get(request_id)
        if request is not None:
            self.state.end_request(request, "error", error=message)

    def take_deltas(self) -> list[RequestDelta]:
        """What the streams should get since the last call."""
        deltas, self.state.outbox = self.state.outbox, []
        return deltas

    @property
    def has_requests(self) -> bool:
        return bool(self.state.requests)

    @property
    def num_in_flight(self) -> int:
        return len(self.state.inflight)

    # A step.

    def schedule(self, now_s: float = 0.0) -> Batch | None:
        """The next step, or None when nothing can work before a step in flight has ended.
        `now_s`: on the clock of the requests' arrival times."""
        state = self.state
        state.now_s = now_s
        make_way_for_urgent(state, self._limits.max_num_batched_tokens)
        step = StepBuild(state.last_launched + 1, self._prefill_budget())
        for seq in list(state.running):
            if seq.state is not SequenceState.RUNNING:
                continue  # preempted for one before it
            if seq.is_prefilling:
                self._prefill(step, seq)
            else:
                self._decode(step, seq)
        if not step.is_short_of_pages:
            self._admit_waiting(step)
        batch = self._launch(step)
        for request_id in step.failed:
            # Not before: others of its sequences may work in this step.
            self.fail(request_id, REQUEST_FAILED)
        return batch

    def commit(self, result: StepResult) -> None:
        """Takes the result of the oldest step in flight."""
        ended = commit_step(self.state, result)
        if self._step_time is not None and result.duration_s > 0:
            self._step_time.observe(
                result.duration_s,
                ended.num_prefill_tokens,
                ended.num_decodes,
                ended.num_context_tokens,
            )

    def check_integrity(self) -> None:
        """Raises AssertionError when pages, rows and counters do not add up."""
        self.state.check_integrity()

    def _launch(self, step: StepBuild) -> Batch | None:
        if not (step.work or self.state.swap_out):
            return None
        self._unblock_forks(step)
        context = 0 if self._step_time is None else self._num_context_tokens()
        return step.launch_from(self.state, context)

    def _num_context_tokens(self) -> int:
        return sum(seq.num_computed for seq in self.state.running)

    def _prefill_budget(self) -> int:
        """Tokens of prefill in this step: what the decodes leave of the budget, less when streams
        that decode would miss their inter-token latency."""
        num_decoding = sum(map(_decodes_next, self.state.running))
        budget = self._limits.max_num_batched_tokens - num_decoding
        if self._step_time is None or num_decoding == 0:
            return budget
        allowed = self._step_time.prefill_allowance(num_decoding, self._num_context_tokens())
        return min(budget, allowed)

    def _decode(self, step: StepBuild, seq: Sequence) -> None:
        if not _decodes_next(seq):
            return
        start = seq.num_computed
        if self._door.outgrows(seq.num_rotated, start + 1):
            self.state.preempt(seq)  # its admission computes it anew
            return
        if start < seq.capacity_tokens or self._grow(step, seq, start + 1) > start:
            step.add_decode(seq)

    def _prefill(self, step: StepBuild, seq: Sequence) -> None:
        start = seq.num_computed
        chunk = min(len(seq.token_ids) - start, step.prefill_left)
        if chunk <= 0:
            return
        end = start + chunk
        if end > seq.capacity_tokens:
            end = self._grow(step, seq, end)
        if end > start:
            step.add_prefill(seq, end)
            self._share(seq)

    def _grow(self, step: StepBuild, seq: Sequence, end: int) -> int:
        """Gets pages towards `end`, at the cost of less urgent sequences where none are free.
        Returns how far the pages reach; when no further, the sequence waits or was preempted."""
        state, tables = self.state, self.state.tables
        state.frees.release(tables.trim_windows(seq), state.last_launched)
        start = seq.num_computed
        reach = tables.reachable(seq, end)
        if reach == start and self._make_room(seq, tables.missing(seq, start + 1)):
            reach = tables.reachable(seq, end)
        if reach == start or seq.state is not SequenceState.RUNNING:
            step.is_short_of_pages = True
            return start
        step.appended += tables.extend(seq, reach)
        return reach

    def _make_room(self, seq: Sequence, count: int) -> bool:
        """Whether `count` pages are free now. Where not even the pages on their way back suffice,
        the least urgent sequences are preempted: they come after `seq`, so none has work in this
        step yet; `seq` itself is the last resort."""
        state = self.state
        while state.pool.num_free < count:
            if state.pool.num_free + state.frees.num_pending >= count:
                return False
            victim = state.running[-1]
            state.preempt(victim)
            if victim is seq:
                return False
        return True

    def _admit_waiting(self, step: StepBuild) -> None:
        state = self.state
        while step.prefill_left > 0 and state.free_rows:
            seq = state.queue.peek()
            if seq is None or seq.resume_after > state.frees.last_ended:
                return
            try:
                if not admit(state, step, seq):
                    return
                self._share(seq)
            except Exception:
                request_id = seq.request.spec.request_id
                log.exception("a request failed at its admission", request_id=request_id)
                step.failed.add(request_id)
                if seq.state is SequenceState.WAITING:
                    state.end(seq, "error", error=REQUEST_FAILED)

    def _share(self, seq: Sequence) -> None:
        """What this step computes of a prompt can be found by the next admission, even of the same
        step: in each layer all keys and values are written before any query reads them."""
        self.state.tables.register(seq)

    def _unblock_forks(self, step: StepBuild) -> None:
        for seq in step.prefilling:
            if seq.index == 0 and not seq.is_prefilling:
                self.state.unblock_forks(seq.request)


def _decodes_next(seq: Sequence) -> bool:
    """Not while its prompt is computed, nor when its last token is on its way."""
    return not seq.is_prefilling and len(seq.token_ids) + seq.num_inflight < seq.max_len
