"""The engine in a process of its own, behind the same `EngineClient`.

The interpreter's lock would otherwise couple the server's JSON and templates to the launches of
steps. Two ZeroMQ sockets join the two; a thread here listens, also for the end of the process.
"""

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import msgspec
import structlog
import zmq

from octavo_engine.config import EngineConfig
from octavo_engine.core import wire
from octavo_engine.core.failures import error_of
from octavo_engine.core.receivers import QueueLimits, Receivers
from octavo_engine.core.streams import DeltaStream, Mailbox
from octavo_engine.logs import LogFormat
from octavo_engine.messages import ENGINE_STOPPED, EngineInfo, EngineRequest, EngineStats
from octavo_engine.progress import Report
from octavo_engine.scheduling.admission import DoorLimits, verify_request

log = structlog.get_logger(__name__)

_LISTEN_MS = 100
"""Time after which the end of the core's process is seen."""
_CLOSE_LIMIT_S = 20.0
"""A core that does not end by itself by then is killed."""


class CoreProcessFailed(Exception):
    """The core's process ended, or failed, while it loaded the model."""


class ProcessEngine:
    """Implements `EngineClient`, once it is loaded."""

    def __init__(self, config: EngineConfig, log_format: LogFormat) -> None:
        """The process starts and begins to load."""
        self._folder = tempfile.TemporaryDirectory(prefix="octavo-core-")  # ours alone: mode 0700
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._commands = self._context.socket(zmq.PUSH)
        self._reports = self._context.socket(zmq.PULL)
        self._send_lock = threading.Lock()
        settings = config.scheduler
        limits = QueueLimits(settings.max_queued_requests, settings.max_queued_tokens)
        self._receivers = Receivers(limits, self.abort)
        self._info: EngineInfo | None = None
        self._door: DoorLimits | None = None
        self._stats: EngineStats | None = None
        self._heard_s = time.monotonic()
        self._process = self._start(wire.Boot(config, log_format))
        self._listener = threading.Thread(target=self._listen, name="octavo-listen", daemon=True)

    @property
    def info(self) -> EngineInfo:
        assert self._info is not None, "the core is still loading"
        return self._info

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def death(self) -> str | None:
        return self._receivers.death

    def verify(self, request: EngineRequest) -> None:
        """Raises the RequestError that a submit would raise; sends nothing."""
        assert self._door is not None, "the core is still loading"
        verify_request(request, self._door)

    def submit(self, request: EngineRequest) -> DeltaStream:
        """From a running event loop. Raises RequestError, QueueFull, EngineDead."""
        self.verify(request)
        stream = self._receivers.open_stream(request)
        self._submit(request)
        return stream

    def submit_to(self, request: EngineRequest, mailbox: Mailbox) -> None:
        """Queues a request whose deltas go to `mailbox`. Raises as `submit` does."""
        self.verify(request)
        self._receivers.claim(request, mailbox)
        self._submit(request)

    def abort(self, request_id: str) -> None:
        self._send(wire.Abort(request_id))

    def finish(self, request_id: str, index: int, stop_reason: str) -> None:
        self._send(wire.Finish(request_id, index, stop_reason))

    def stats(self) -> EngineStats:
        """The last that the core has told, with its ages brought up to now."""
        assert self._stats is not None, "the core is still loading"
        silence_s = time.monotonic() - self._heard_s
        has_work = self._stats.has_work or bool(self._receivers.num_live)
        age_s = self._stats.last_step_age_s + silence_s
        return msgspec.structs.replace(
            self._stats,
            has_work=has_work,
            last_step_age_s=age_s if has_work else 0.0,
            silence_s=silence_s,
        )

    async def close(self) -> None:
        await asyncio.to_thread(self.close_blocking)

    def abandon(self) -> None:
        self._process.kill()
        self._folder.cleanup()

    def close_blocking(self) -> None:
        """Aborts what is left and ends the process, by force when it does not end by itself."""
        if not self._receivers.start_closing():
            return
        self._send(wire.Close())
        try:
            self._process.wait(_CLOSE_LIMIT_S)
        except subprocess.TimeoutExpired:
            log.warning("the core does not end by itself, it is killed", pid=self.pid)
            self._process.kill()
            self._process.wait()
        self._listener.join()
        self._release()

    def load(self, report: Report) -> None:
        """Blocks until the core is ready.

        Raises ConfigError, CheckpointError, MemoryError or CoreProcessFailed; then nothing is left
        behind.
        """
        try:
            while self._stats is None:
                message = self._next_report()
                if isinstance(message, wire.Loading):
                    report(message.stage, message.share)
                elif isinstance(message, wire.Failed):
                    raise error_of(message.kind, message.message) or CoreProcessFailed(
                        message.message
                    )
                elif message is None:
                    self._raise_if_ended()
                else:
                    self._handle(message)
            # What is sent before is dropped.
            while not self._commands.poll(_LISTEN_MS, zmq.POLLOUT):
                self._raise_if_ended()
        except BaseException:
            self.cancel()
            raise
        self._listener.start()

    def cancel(self) -> None:
        """Instead of `load`, or when that has failed: nothing is left behind."""
        self._process.kill()
        self._process.wait()
        self._release()

    def _start(self, boot: wire.Boot) -> "subprocess.Popen[bytes]":
        boot_path = Path(self._folder.name) / "boot"
        boot_path.write_bytes(wire.encode(boot))
        addresses = [f"ipc://{Path(self._folder.name) / name}" for name in ("commands", "reports")]
        for socket, address in zip((self._commands, self._reports), addresses, strict=True):
            socket.set_hwm(0)
            socket.linger = 0
            socket.bind(address)
        program = "octavo_engine.core.core_process"
        command = [sys.executable, "-m", program, str(boot_path), *addresses]
        return subprocess.Popen(command, stdin=subprocess.PIPE)

    def _release(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        with self._send_lock:
            self._commands.close()
        self._reports.close()
        self._context.term()
        self._folder.cleanup()

    def _submit(self, request: EngineRequest) -> None:
        if request.arrival_time_s == 0.0:
            request = msgspec.structs.replace(request, arrival_time_s=time.monotonic())
        self._send(wire.Submit(request))

    def _send(self, command: wire.Command) -> None:
        content = wire.encode(command)
        with self._send_lock:
            if self._commands.closed:
                return
            try:
                self._commands.send(content, zmq.NOBLOCK)
            except zmq.Again:
                # The queue has no limit, so nobody is at its other end: the core's process is gone,
                # and the listener is about to see it.
                log.debug("not sent, the core's process is gone", command=type(command).__name__)

    # The listening thread; before it starts, the loading one.

    def _listen(self) -> None:
        try:
            while True:
                message = self._next_report()
                if message is not None:
                    self._handle(message)
                elif self._process.poll() is not None:
                    break
            self._note_end()
        except BaseException as error:  # whatever ends this thread ends the engine, in the open
            log.exception("the core's reports cannot be read")
            self._receivers.die(f"the core's reports cannot be read: {error!r}", ENGINE_STOPPED)

    def _next_report(self) -> wire.Report | None:
        """None when nothing came for a while."""
        if not self._reports.poll(_LISTEN_MS):
            return None
        message = wire.decode_report(self._reports.recv())
        self._heard_s = time.monotonic()
        return message

    def _handle(self, message: wire.Report) -> None:
        match message:
            case wire.Ready(info):
                self._info = info
                limits = (info.vocab_size, info.max_model_len, info.original_context_len)
                self._door = DoorLimits(*limits)
            case wire.Deltas(deltas):
                self._receivers.post(deltas)
            case wire.Beat(stats) if stats is not None:
                self._stats = stats
            case wire.Died(death):
                self._receivers.die(death, ENGINE_STOPPED)

    def _note_end(self) -> None:
        """The process is gone, and all that it said has been read."""
        if self._receivers.is_closing:
            self._receivers.end_all("abort")
        elif self._receivers.death is None:
            self._receivers.die(self._how_it_ended(), ENGINE_STOPPED)

    def _raise_if_ended(self) -> None:
        if self._process.poll() is not None:
            raise CoreProcessFailed(self._how_it_ended())

    def _how_it_ended(self) -> str:
        code = self._process.returncode
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"the core's process has ended by {how}"
