"""What the scheduler knows between two steps, and the transitions of a sequence.

    WAITING -> RUNNING -> (preempted) WAITING ... -> ENDED

Every transition keeps rows, pages, queue and counters in step; the policy (who works in a step) is
in `scheduler.py`, what a step's result means in `commit.py`. No torch.
"""

from bisect import insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from octavo_engine.batch import BlockCopy
from octavo_engine.messages import FinishReason, RequestDelta
from octavo_engine.scheduling.admission import DoorLimits
from octavo_engine.scheduling.block_tables import BlockTables
from octavo_engine.scheduling.blocks import BlockPool
from octavo_engine.scheduling.frees import DeferredFrees
from octavo_engine.scheduling.request import OutcomeLedger, Request, Sequence, SequenceState
from octavo_engine.scheduling.waiting_queue import WaitingQueue


@dataclass(slots=True)
class InFlightStep:
    step_id: int
    rows: dict[int, Sequence]
    """Who held each working row at the launch."""
    num_samples: int
    num_prefill_tokens: int
    num_decodes: int
    num_context_tokens: int


@dataclass(slots=True)
class Counters:
    """All only ever grow."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    preemptions: int = 0
    swapped_out: int = 0
    steps: int = 0
    ended: dict[str, int] = field(
        default_factory=lambda: {"stop": 0, "length": 0, "abort": 0, "error": 0}
    )


class SchedulerState:
    def __init__(
        self, tables: BlockTables, host_pool: BlockPool | None, num_rows: int, door: DoorLimits
    ) -> None:
        self.tables = tables
        self.door = door
        self.pool = tables.pool
        self.frees = DeferredFrees(tables.pool)
        self.host_pool = host_pool
        self.host_frees = DeferredFrees(host_pool) if host_pool is not None else None
        self.queue = WaitingQueue()
        self.running: list[Sequence] = []
        """Sorted by key: the last is the first to be preempted."""
        self.free_rows = list(range(num_rows - 1, -1, -1))
        self.released_rows: list[int] = []
        """Rows to clear in the next batch."""
        self.swap_out: list[BlockCopy] = []
        """Copies to host memory for the batch being built."""
        self.requests: dict[str, Request] = {}
        self.inflight: deque[InFlightStep] = deque()
        self.last_launched = 0
        self.now_s = 0.0
        """When the step being built was begun."""
        self.outbox: list[RequestDelta] = []
        self.ledger = OutcomeLedger()
        self.counters = Counters()

    # Transitions.

    def start_running(self, seq: Sequence) -> int:
        """Takes the head of the queue into a row of the runner's table."""
        popped = self.queue.pop()
        assert popped is seq
        seq.state = SequenceState.RUNNING
        seq.row = self.free_rows.pop()
        insort(self.running, seq, key=_key_of)
        return seq.row

    def _stop_running(self, seq: Sequence) -> None:
        assert seq.row is not None
        self.running.remove(seq)
        self.released_rows.append(seq.row)
        self.free_rows.append(seq.row)
        seq.row = None

    def preempt(self, seq: Sequence) -> None:
        """Back to the queue in its old place. What it has computed goes to host memory when that
        has room, else to the prefix cache; what eviction takes from there is recomputed."""
        self.tables.register(seq)
        self.frees.release(self.tables.trim_windows(seq), self.last_launched)
        self._stop_running(seq)
        host_tables = self._swap_out(seq)
        pages = self.tables.take_all(seq)
        if host_tables is None:
            self.frees.release(pages, self.last_launched)
            seq.num_computed = 0
        else:
            # The copy to host memory reads them in the step that is being built.
            self.frees.release(pages, self.last_launched + 1)
            seq.host_tables = host_tables
            self.counters.swapped_out += 1
        seq.num_registered = 0
        seq.is_prefilling = True
        seq.resume_after = self.last_launched
        self.counters.preemptions += 1
        self.queue.push(seq)

    def _swap_out(self, seq: Sequence) -> list[list[int]] | None:
        if self.host_pool is None or seq.num_computed == 0:
            return None
        used = -(-seq.num_computed // self.tables.block_size)
        tables = [table[:used] for table in seq.block_tables]
        count = sum(1 for table in tables for block in table if block)
        if count > self.host_pool.num_free:
            return None
        fresh = iter(self.host_pool.allocate(count))
        host_tables = [[next(fresh) if block else 0 for block in table] for table in tables]
        for table, host_table in zip(tables, host_tables, strict=True):
            pairs = zip(table, host_table, strict=True)
            self.swap_out += [BlockCopy(src, dst) for src, dst in pairs if src]
        return host_tables

    def release_host(self, seq: Sequence, after_step: int) -> None:
        if seq.host_tables:
            assert self.host_frees is not None
            pages = [block for table in seq.host_tables for block in table if block]
            self.host_frees.release(pages, after_step)
            seq.host_tables = []

    def end(
        self,
        seq: Sequence,
        reason: FinishReason,
        *,
        delta: RequestDelta | None = None,
        stop_reason: int | str | None = None,
        error: str | None = None,
    ) -> None:
        """Ends a sequence that has not ended yet and tells its stream; the only way to ENDED."""
        assert seq.state is not SequenceState.ENDED
        if seq.state is SequenceState.RUNNING:
            self.tables.register(seq)
            self._stop_running(seq)
            self.frees.release(self.tables.take_all(seq), self.last_launched)
        was_waiting = seq.state is SequenceState.WAITING
        seq.state = SequenceState.ENDED
        if was_waiting:
            self.queue.note_ended()
        # A copy to host memory may be waiting for its launch, so one step later is the earliest.
        self.release_host(seq, self.last_launched + (1 if self.swap_out else 0))
        self.counters.ended[reason] += 1
        self.outbox.append(
            delta
            or RequestDelta(
                request_id=seq.request.spec.request_id,
                index=seq.index,
                token_ids=[],
                num_cached_tokens=seq.num_cached_tokens,
                finish_reason=reason,
                stop_reason=stop_reason,
                error=error,
            )
        )
        outcome = seq.request.note_end(reason)
        if outcome is not None:
            self.ledger.ended[outcome] += 1
            del self.requests[seq.request.spec.request_id]
        elif seq.index == 0:
            self.unblock_forks(seq.request)

    def unblock_forks(self, request: Request) -> None:
        """The first sequence has its prompt's pages, or will never have them."""
        for seq in request.sequences:
            if seq.state is SequenceState.BLOCKED:
                self.queue.push(seq)

    def end_request(
        self, request: Request, reason: FinishReason, *, error: str | None = None
    ) -> None:
        # Later sequences first: the end of the first would send the blocked ones to the queue.
        for seq in reversed(request.sequences):
            if seq.state is not SequenceState.ENDED:
                self.end(seq, reason, error=error)

    # Checks.

    def _owned(self) -> Iterator[int]:
        for seq in self.running:
            for table in seq.block_tables:
                yield from table
        yield from self.frees.held()

    def _owned_on_host(self) -> Iterator[int]:
        for seq in self.queue:
            for table in seq.host_tables:
                yield from table
        if self.host_frees is not None:
            yield from self.host_frees.held()

    def check_integrity(self) -> None:
        """Raises AssertionError when pages, rows, states and counters do not add up."""
        self.pool.check_integrity(self._owned())
        if self.host_pool is not None:
            self.host_pool.check_integrity(self._owned_on_host())
        rows = [seq.row for seq in self.running]
        assert sorted([*self.free_rows, *(row for row in rows if row is not None)]) == list(
            range(len(self.free_rows) + len(self.running))
        ), f"rows {rows} and free rows {self.free_rows} do not add up"
        assert self.running == sorted(self.running, key=_key_of), "running is out of order"
        assert sum(1 for _ in self.queue) == len(self.queue), "the queue miscounts"
        live = [seq for request in self.requests.values() for seq in request.sequences]
        waiting = sum(seq.state is SequenceState.WAITING for seq in live)
        assert waiting == len(self.queue), f"{waiting} wait, the queue counts {len(self.queue)}"
        self.ledger.check(len(self.requests))


def _key_of(seq: Sequence) -> tuple[float, int]:
    return seq.key
