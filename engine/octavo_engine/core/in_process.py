"""The engine in this process: the core loop on a thread of its own behind `EngineClient`.

The thread sleeps while there is no work and wakes at once on a submit or an abort. When a step
raises, the engine is dead: every stream gets an error delta and later submits raise EngineDead.
"""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import msgspec
import structlog

from octavo_engine.batch import Runner, WatchedRunner
from octavo_engine.config import EngineConfig, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.core.receivers import QueueLimits, Receivers, last_deltas
from octavo_engine.core.start import start_runner
from octavo_engine.core.streams import DeltaStream, Mailbox
from octavo_engine.logs import LogFormat
from octavo_engine.messages import (
    ENGINE_STOPPED,
    REQUEST_FAILED,
    EngineInfo,
    EngineRequest,
    EngineStats,
)
from octavo_engine.progress import Report, silent
from octavo_engine.scheduling.admission import verify_request

if TYPE_CHECKING:
    from octavo_engine.structured.compiler import GrammarCompiler

log = structlog.get_logger(__name__)

_QUIET_S = 1.0
"""Idle time after which the pages are counted; long enough to stay out of the way of bursts."""

_END_LIMIT_S = 10.0
"""Time for the core's thread when the runner has seen its end: a step then fails soon or never."""

_SWITCH_INTERVAL_S = 0.0005
"""How long another thread may keep the interpreter when the core's has a step to launch. With 256
streams read in this process, Python's own 5 ms leave a device of 6 ms steps idle for a fifth
of the time, this for a twentieth (tests/bench/stream_overhead.py)."""


@dataclass(frozen=True, slots=True)
class _Submit:
    request: EngineRequest


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _Finish:
    request_id: str
    index: int
    stop_reason: str


@dataclass(frozen=True, slots=True)
class _Close:
    pass


_Command = _Submit | _Abort | _Finish | _Close


def build_engine(
    config: EngineConfig,
    compiler: "GrammarCompiler | None" = None,
    report: Report = silent,
    log_format: LogFormat = "console",
) -> "InProcessEngine":
    """Loads the model and starts the engine. Raises ConfigError or CheckpointError.

    compiler: for structured output, when the caller has one to share. log_format: of the ranks that
    are started.
    """
    runner = start_runner(config, compiler, report, log_format)
    settle_process()
    try:
        return InProcessEngine(runner, config.scheduler, prefix_caching=config.cache.prefix_caching)
    except BaseException:
        runner.close()
        raise


def settle_process() -> None:
    """After loading: what it has left is there for good, so the collector need not walk it during a
    step, and threads give way to each other quickly."""
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)


class InProcessEngine:
    """Implements `EngineClient`; owns the runner and closes it."""

    def __init__(
        self, runner: Runner, settings: SchedulerSettings, *, prefix_caching: bool = True
    ) -> None:
        self._core = EngineCore(runner, settings, prefix_caching=prefix_caching)
        self._runner = runner
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        limits = QueueLimits(settings.max_queued_requests, settings.max_queued_tokens)
        self._receivers = Receivers(limits, self.abort)
        self._is_asleep = False
        self._is_ending = threading.Event()
        """The core's thread ends now, or waits for a step that may never end."""
        if isinstance(runner, WatchedRunner):
            runner.on_failure(self._fail)
        self._thread = threading.Thread(target=self._run, name="octavo-core", daemon=True)
        self._thread.start()

    # For any thread.

    @property
    def info(self) -> EngineInfo:
        return self._core.info

    @property
    def max_queued_requests(self) -> int:
        return self._core.limits.max_queued_requests

    @property
    def death(self) -> str | None:
        """Why the core has stopped; None while it lives."""
        return self._receivers.death

    def on_death(self, told: Callable[[str], None]) -> None:
        """`told` is called once, on any thread, before the streams end."""
        self._receivers.on_death(told)

    def verify(self, request: EngineRequest) -> None:
        """Raises the RequestError that a submit would raise; queues nothing."""
        verify_request(request, self._core.door)

    def submit(self, request: EngineRequest) -> DeltaStream:
        """Queues a request from a running event loop.

        Raises RequestError, QueueFull, EngineDead.
        """
        self.verify(request)
        stream = self._receivers.open_stream(request)
        self._enqueue(request)
        return stream

    def submit_to(self, request: EngineRequest, mailbox: Mailbox) -> None:
        """Queues a request whose deltas go to `mailbox`. Raises as `submit` does."""
        self.verify(request)
        self._receivers.claim(request, mailbox)
        self._enqueue(request)

    def abort(self, request_id: str) -> None:
        self._inbox.put(_Abort(request_id))

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        self._inbox.put(_Finish(request_id, index, stop_reason))

    def stats(self) -> EngineStats:
        return self._core.stats(is_work_queued=not self._inbox.empty())

    async def close(self) -> None:
        """Aborts what is left, waits for the steps in flight and closes the runner; does not wait
        long once the runner has seen its end."""
        await asyncio.to_thread(self.close_blocking)

    def abandon(self) -> None:
        """Nothing: the core's thread ends with this process."""

    def close_blocking(self) -> None:
        if self._receivers.start_closing():
            self._inbox.put(_Close())
        self._is_ending.wait()
        self._thread.join(_END_LIMIT_S)
        if self._thread.is_alive():
            log.warning("the core's thread waits for a step and is left alone", death=self.death)
        gc.unfreeze()  # so that what loading left can be freed

    def _enqueue(self, request: EngineRequest) -> None:
        if self._is_asleep:
            # The time asleep is not time without progress.
            self._core.note_progress()
        if request.arrival_time_s == 0.0:
            request = msgspec.structs.replace(request, arrival_time_s=time.monotonic())
        self._inbox.put(_Submit(request))

    def _fail(self, death: str) -> None:
        """The runner has seen its end while the core's thread may wait for a step for ever."""
        self._receivers.die(death, ENGINE_STOPPED)
        self._is_ending.set()

    # The core's thread.

    def _run(self) -> None:
        try:
            while self._take_commands():
                core = self._core
                self._receivers.post(core.step() if core.has_work else core.take_deltas())
            self._abort_all()
            self._core.finish_steps()
        except BaseException as error:  # whatever ends this thread ends the engine, in the open
            log.exception("the engine's core has stopped")
            death = f"the engine has stopped: {type(error).__name__}: {error}"
            self._receivers.die(death, ENGINE_STOPPED)
        finally:
            try:
                self._runner.close()
            finally:
                self._is_ending.set()

    def _take_commands(self) -> bool:
        """Handles what has come in; sleeps first while there is nothing to do. False: close."""
        if not self._core.has_work and not self._handle(self._wait_for_command()):
            return False
        while True:
            try:
                command = self._inbox.get_nowait()
            except Empty:
                return True
            if not self._handle(command):
                return False

    def _wait_for_command(self) -> _Command:
        self._core.note_progress()
        self._is_asleep = True
        try:
            return self._inbox.get(timeout=_QUIET_S)
        except Empty:
            self._core.check_integrity()
            return self._inbox.get()
        finally:
            self._is_asleep = False

    def _handle(self, command: _Command) -> bool:
        match command:
            case _Submit(request):
                self._add(request)
            case _Abort(request_id):
                self._core.abort(request_id)
            case _Finish(request_id, index, stop_reason):
                self._core.finish(request_id, index, stop_reason)
            case _Close():
                return False
        return True

    def _add(self, request: EngineRequest) -> None:
        try:
            self._core.submit(request)
        except Exception:
            request_id = request.request_id
            log.exception("a request failed on its way in", request_id=request_id)
            if self._core.is_live(request_id):
                self._core.fail(request_id, REQUEST_FAILED)
            else:
                sequences = range(request.params.n)
                last = last_deltas(request_id, sequences, "error", REQUEST_FAILED)
                self._receivers.post(last)

    def _abort_all(self) -> None:
        for request_id in self._receivers.live_ids:
            self._core.abort(request_id)
        self._receivers.post(self._core.take_deltas())
        self._receivers.end_all("abort")  # those that came in after the close
