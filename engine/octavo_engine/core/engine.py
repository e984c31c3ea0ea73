"""The core's loop body: schedule the next step while the last one runs, then take its result.

Knows no thread and no event loop (`in_process.py` has them) and no model (`batch.Runner` has it).
"""

import time
from collections import deque
from collections.abc import Callable

import msgspec

from octavo_engine.batch import Runner, StepHandle
from octavo_engine.config import SchedulerSettings
from octavo_engine.core.step_stats import StepLedger
from octavo_engine.messages import EngineInfo, EngineRequest, EngineStats, RequestDelta
from octavo_engine.scheduling.admission import DoorLimits
from octavo_engine.scheduling.block_tables import BlockTables
from octavo_engine.scheduling.blocks import BlockPool
from octavo_engine.scheduling.limits import resolve_limits
from octavo_engine.scheduling.scheduler import Scheduler
from octavo_engine.scheduling.seeds import draw_seed

MAX_STEPS_IN_FLIGHT = 2
"""One runs, the next waits on the device: the device is never idle while there is work."""


class EngineCore:
    """Scheduler and runner, step by step. One thread at a time."""

    def __init__(
        self,
        runner: Runner,
        settings: SchedulerSettings,
        *,
        prefix_caching: bool = True,
        clock: Callable[[], float] = time.monotonic,
        new_seed: Callable[[], int] = draw_seed,
    ) -> None:
        info = runner.info
        self._runner = runner
        self._clock = clock
        self.limits = resolve_limits(settings, info)
        pool = BlockPool(info.num_blocks, len(runner.kv_groups))
        tables = BlockTables(pool, runner.kv_groups, info.block_size, prefix_caching)
        self.info = _info_with_capacity(info, tables, self.limits.max_num_seqs)
        self.door = DoorLimits(
            info.vocab_size, self.info.max_model_len, info.original_context_len, info.restart_len
        )
        self._scheduler = Scheduler(
            tables, self.limits, self.door, runner.num_host_blocks, new_seed
        )
        self._handles: deque[StepHandle] = deque()
        self._ledger = StepLedger()
        self._last_progress_s = clock()

    def submit(self, request: EngineRequest) -> None:
        """Queues a request that `admission.verify_request` has let in."""
        self._scheduler.add(request)

    def abort(self, request_id: str) -> None:
        self._scheduler.abort(request_id)

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        self._scheduler.finish(request_id, index, stop_reason)

    def fail(self, request_id: str, message: str) -> None:
        self._scheduler.fail(request_id, message)

    def is_live(self, request_id: str) -> bool:
        return request_id in self._scheduler.state.requests

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_requests or bool(self._handles)

    def step(self) -> list[RequestDelta]:
        """Launches the next step, waits for the oldest when enough are in flight, and returns what
        the streams should get. Raises what the runner raised: the core is then at its end."""
        self._last_progress_s = self._clock()
        is_launched = self._launch_next()
        if self._handles and (len(self._handles) >= MAX_STEPS_IN_FLIGHT or not is_launched):
            self._commit_oldest()
        elif not is_launched and self._scheduler.has_requests:
            raise RuntimeError("requests wait, none can work and no step is in flight")
        return self._scheduler.take_deltas()

    def _launch_next(self) -> bool:
        began_s = self._clock()
        batch = self._scheduler.schedule(began_s)
        scheduled_s = self._clock()
        self._ledger.schedule_s += scheduled_s - began_s
        if batch is None:
            return False
        self._handles.append(self._runner.launch(batch))
        self._ledger.launch_s += self._clock() - scheduled_s
        self._ledger.note_launch(batch)
        return True

    def _commit_oldest(self) -> None:
        began_s = self._clock()
        result = self._handles.popleft().result()
        ended_s = self._clock()
        self._ledger.wait_s += ended_s - began_s
        self._ledger.note_end(result, ended_s)
        self._scheduler.commit(result)
        self._last_progress_s = self._clock()
        self._ledger.commit_s += self._last_progress_s - ended_s
        if not self.has_work:
            self._ledger.note_idle()

    def finish_steps(self) -> None:
        """Waits for the steps in flight, so that the runner can be closed."""
        while self._handles:
            self._commit_oldest()

    def take_deltas(self) -> list[RequestDelta]:
        """What aborts and finishes have left for the streams since the last step."""
        return self._scheduler.take_deltas()

    def note_progress(self) -> None:
        self._last_progress_s = self._clock()

    def check_integrity(self) -> None:
        self._scheduler.check_integrity()

    def stats(self, *, is_work_queued: bool = False) -> EngineStats:
        """Cheap, and safe from another thread: every field is read once and only ever replaced.
        `is_work_queued`: the caller holds work that has not been submitted yet."""
        state = self._scheduler.state
        counters = state.counters
        has_work = self.has_work or is_work_queued
        return EngineStats(
            num_running=len(state.running),
            num_waiting=len(state.queue),
            kv_blocks_total=state.pool.num_usable,
            kv_blocks_used=state.pool.num_used,
            kv_blocks_cached=state.pool.num_cached,
            prompt_tokens_total=counters.prompt_tokens,
            generation_tokens_total=counters.generation_tokens,
            prefix_queries_tokens_total=counters.prefix_queries_tokens,
            prefix_hits_tokens_total=counters.prefix_hits_tokens,
            preemptions_total=counters.preemptions,
            finished_total=dict(counters.ended),
            steps_total=counters.steps,
            last_step_age_s=self._clock() - self._last_progress_s if has_work else 0.0,
            has_work=has_work,
            steps=self._ledger.stats(),
        )


def _info_with_capacity(info: EngineInfo, tables: BlockTables, max_num_seqs: int) -> EngineInfo:
    """The context as far as the pages hold it. All of it is written where a prompt is the whole
    sequence; a token that was generated last never is."""
    held_len = tables.capacity_tokens(info.max_model_len)
    return msgspec.structs.replace(info, max_model_len=held_len, max_num_seqs=max_num_seqs)
