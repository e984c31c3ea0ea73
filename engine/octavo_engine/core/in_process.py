"""The engine in this process: the core loop on a thread of its own behind `EngineClient`.

The thread sleeps while there is no work and wakes at once on a submit or an abort. When a step
raises, the engine is dead: every stream gets an error delta and later submits raise EngineDead.
"""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import msgspec
import structlog

from octavo_engine.batch import Runner
from octavo_engine.config import EngineConfig, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.core.streams import DeltaStream, LoopMailbox, Mailbox
from octavo_engine.errors import EngineDead, QueueFull, RequestError
from octavo_engine.messages import (
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    RequestDelta,
)
from octavo_engine.scheduling.admission import verify_request

log = structlog.get_logger(__name__)

_QUIET_S = 1.0
"""Idle time after which the pages are counted; long enough to stay out of the way of bursts."""

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


def build_engine(config: EngineConfig) -> "InProcessEngine":
    """Loads the model and starts the engine. Raises ConfigError or CheckpointError."""
    from octavo_engine.runner.build import build_runner

    runner = build_runner(config)
    # What loading has left is there for good: the collector need not walk it during a step.
    gc.collect()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        return InProcessEngine(runner, config.scheduler, prefix_caching=config.cache.prefix_caching)
    except BaseException:
        runner.close()
        raise


class InProcessEngine:
    """Implements `EngineClient`; owns the runner and closes it."""

    def __init__(
        self, runner: Runner, settings: SchedulerSettings, *, prefix_caching: bool = True
    ) -> None:
        self._core = EngineCore(runner, settings, prefix_caching=prefix_caching)
        self._runner = runner
        self._inbox: SimpleQueue[_Command] = SimpleQueue()
        self._lock = threading.Lock()
        """Guards the three below: submits come from any thread."""
        self._live: dict[str, tuple[Mailbox, int]] = {}
        """Receiver and number of sequences of each request that has not ended."""
        self._death: str | None = None
        self._is_closing = False
        self._loops: dict[asyncio.AbstractEventLoop, LoopMailbox] = {}
        self._is_asleep = False
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
        return self._death

    def verify(self, request: EngineRequest) -> None:
        """Raises the RequestError that a submit would raise; queues nothing."""
        verify_request(request, self._core.door)

    def submit(self, request: EngineRequest) -> DeltaStream:
        """Queues a request from a running event loop.

        Raises RequestError, QueueFull, EngineDead.
        """
        mailbox = self._mailbox_of(asyncio.get_running_loop())
        if mailbox.has_stream(request.request_id):
            raise _in_use(request.request_id)
        request = self._claim(request, mailbox)
        stream = mailbox.open_stream(request.request_id, request.params.n)
        self._inbox.put(_Submit(request))
        return stream

    def submit_to(self, request: EngineRequest, mailbox: Mailbox) -> None:
        """Queues a request whose deltas go to `mailbox`. Raises as `submit` does."""
        self._inbox.put(_Submit(self._claim(request, mailbox)))

    def abort(self, request_id: str) -> None:
        self._inbox.put(_Abort(request_id))

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        self._inbox.put(_Finish(request_id, index, stop_reason))

    def stats(self) -> EngineStats:
        return self._core.stats(is_work_queued=not self._inbox.empty())

    async def close(self) -> None:
        """Aborts what is left, waits for the steps in flight and closes the runner."""
        await asyncio.to_thread(self.close_blocking)

    def close_blocking(self) -> None:
        with self._lock:
            is_first = not self._is_closing
            self._is_closing = True
        if is_first:
            self._inbox.put(_Close())
        self._thread.join()
        gc.unfreeze()  # so that what loading left can be freed

    def _claim(self, request: EngineRequest, mailbox: Mailbox) -> EngineRequest:
        """Checks a request at the door and notes who gets its deltas."""
        self.verify(request)
        num_waiting = self._core.num_waiting + self._inbox.qsize()
        with self._lock:
            if self._death is not None:
                raise EngineDead(self._death)
            if self._is_closing:
                raise EngineDead("the engine is closing")
            if request.request_id in self._live:
                raise _in_use(request.request_id)
            if num_waiting >= self._core.limits.max_queued_requests:
                raise QueueFull(f"{num_waiting} requests are waiting already")
            self._live[request.request_id] = (mailbox, request.params.n)
        if self._is_asleep:
            # The time asleep is not time without progress.
            self._core.note_progress()
        if request.arrival_time_s == 0.0:
            request = msgspec.structs.replace(request, arrival_time_s=time.monotonic())
        return request

    def _mailbox_of(self, loop: asyncio.AbstractEventLoop) -> LoopMailbox:
        with self._lock:
            mailbox = self._loops.get(loop)
            if mailbox is None:
                self._loops = {
                    known: m for known, m in self._loops.items() if not known.is_closed()
                }
                mailbox = self._loops[loop] = LoopMailbox(loop)
            return mailbox

    # The core's thread.

    def _run(self) -> None:
        try:
            while self._take_commands():
                self._post(self._core.step() if self._core.has_work else self._core.take_deltas())
            self._abort_all()
            self._core.finish_steps()
        except BaseException as error:  # whatever ends this thread ends the engine, in the open
            log.exception("the engine's core has stopped")
            self._die(f"the engine has stopped: {type(error).__name__}: {error}")
        finally:
            self._runner.close()

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
        except Exception as error:
            request_id, message = request.request_id, f"internal error: {error}"
            log.exception("a request failed on its way in", request_id=request_id)
            if self._core.is_live(request_id):
                self._core.fail(request_id, message)
            else:
                self._post(_last_deltas(request_id, range(request.params.n), "error", message))

    def _post(self, deltas: list[RequestDelta]) -> None:
        """One hand-over for each receiver; forgets the requests that have ended."""
        by_mailbox: dict[int, tuple[Mailbox, list[RequestDelta]]] = {}
        for delta in deltas:
            receiver = self._live.get(delta.request_id)
            if receiver is None:
                continue  # its event loop is gone
            mailbox, _ = receiver
            by_mailbox.setdefault(id(mailbox), (mailbox, []))[1].append(delta)
        for delta in deltas:
            # Before the hand-over: who has read a request's end may use its id again.
            if delta.finish_reason is not None and not self._core.is_live(delta.request_id):
                self._live.pop(delta.request_id, None)
        for mailbox, part in by_mailbox.values():
            self._hand_over(mailbox, part)

    def _hand_over(self, mailbox: Mailbox, deltas: list[RequestDelta]) -> None:
        try:
            mailbox.post(deltas)
        except RuntimeError:
            # The event loop was closed with streams open: nobody reads, so nobody waits.
            request_ids = {delta.request_id for delta in deltas}
            log.warning("a receiver is gone, its requests are aborted", count=len(request_ids))
            for request_id in request_ids:
                self._core.abort(request_id)
                self._live.pop(request_id, None)

    def _abort_all(self) -> None:
        for request_id, (mailbox, num_sequences) in list(self._live.items()):
            if self._core.is_live(request_id):
                self._core.abort(request_id)
            else:  # it came in after the close
                self._hand_over(mailbox, _last_deltas(request_id, range(num_sequences), "abort"))
        self._post(self._core.take_deltas())

    def _die(self, message: str) -> None:
        """Every stream gets its end, and so does every request that is still in the inbox."""
        with self._lock:
            self._death = message
            live, self._live = self._live, {}
        for request_id, (mailbox, num_sequences) in live.items():
            indices: Iterable[int] = range(num_sequences)
            if self._core.is_live(request_id):
                indices = self._core.live_sequences(request_id)
            self._hand_over(mailbox, _last_deltas(request_id, indices, "error", message))


def _in_use(request_id: str) -> RequestError:
    return RequestError(f"request id {request_id!r} is already in use", "request_id")


def _last_deltas(
    request_id: str, indices: Iterable[int], reason: FinishReason, error: str | None = None
) -> list[RequestDelta]:
    return [
        RequestDelta(
            request_id=request_id, index=i, token_ids=[], finish_reason=reason, error=error
        )
        for i in indices
    ]
