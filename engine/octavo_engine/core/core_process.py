"""The core's own process: `python -m octavo_engine.core.core_process BOOT COMMANDS REPORTS`.

Its main thread speaks with the server's process over two ZeroMQ sockets and says that it lives;
the core runs on a thread, as in one process. It ends with the server: its standard input is a pipe
that the server holds open.
"""

import os
import select
import signal
import sys
import threading
from pathlib import Path

import structlog
import zmq

from octavo_engine.core import wire
from octavo_engine.core.failures import kind_of, sentence_of
from octavo_engine.core.in_process import InProcessEngine, build_engine
from octavo_engine.core.receivers import last_deltas
from octavo_engine.errors import OctavoError
from octavo_engine.logs import configure_logs
from octavo_engine.messages import REQUEST_FAILED, EngineRequest, RequestDelta
from octavo_engine.progress import Stage

log = structlog.get_logger(__name__)

BEAT_PERIOD_MS = 250
_LINGER_MS = 2000
"""Time for the last words to leave."""


class Speaker:
    """The socket to the server, used by the main, the loading and the core's thread."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._lock = threading.Lock()

    def say(self, report: wire.Report) -> None:
        content = wire.encode(report)
        with self._lock:
            if not self._socket.closed:
                self._socket.send(content)

    def post(self, deltas: list[RequestDelta]) -> None:
        """As a `Mailbox` of the engine."""
        self.say(wire.Deltas(deltas))

    def tell_death(self, death: str) -> None:
        self.say(wire.Died(death))

    def close(self) -> None:
        """Nobody hears what is said from now on."""
        with self._lock:
            self._socket.close()


class CoreProcess:
    def __init__(self, commands: "zmq.Socket[bytes]", speaker: Speaker) -> None:
        self._commands = commands
        self._speaker = speaker
        self._engine: InProcessEngine | None = None
        self._has_failed = threading.Event()

    def run(self, boot: wire.Boot) -> int:
        """Until told to close, left alone or dead; returns the exit code."""
        configure_logs(boot.log_format)
        threading.Thread(target=self._load, args=(boot,), daemon=True).start()
        poller = zmq.Poller()
        poller.register(self._commands, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while not self._has_failed.is_set():
            ready = dict(poller.poll(BEAT_PERIOD_MS))
            if sys.stdin.fileno() in ready and _is_closed(sys.stdin.fileno()):
                log.warning("the server's process is gone")
                return 1
            if self._commands in ready and not self._take_commands():
                return 0
            engine = self._engine
            if engine is not None and engine.death is not None:
                self._speaker.tell_death(engine.death)
                return 1
            self._speaker.say(wire.Beat(None if engine is None else engine.stats()))
        return 1

    def _take_commands(self) -> bool:
        """Handles all that have come. False: close."""
        while True:
            try:
                command = wire.decode_command(self._commands.recv(zmq.NOBLOCK))
            except zmq.Again:
                return True
            if not self._handle(command):
                return False

    def _handle(self, command: wire.Command) -> bool:
        engine = self._engine
        match command:
            case wire.Close():
                if engine is not None:
                    engine.close_blocking()
                return False
            case wire.Submit(request) if engine is not None:
                self._submit(engine, request)
            case wire.Abort(request_id) if engine is not None:
                engine.abort(request_id)
            case wire.Finish(request_id, index, stop_reason) if engine is not None:
                engine.finish(request_id, index, stop_reason)
        return True

    def _submit(self, engine: InProcessEngine, request: EngineRequest) -> None:
        try:
            engine.submit_to(request, self._speaker)
        except OctavoError:  # the server has checked it: one of us is wrong, or it has just died
            log.exception("a request was refused", request_id=request.request_id)
            sequences = range(request.params.n)
            last = last_deltas(request.request_id, sequences, "error", REQUEST_FAILED)
            self._speaker.post(last)

    def _load(self, boot: wire.Boot) -> None:
        try:
            engine = build_engine(boot.config, report=self._report, log_format=boot.log_format)
        except BaseException as error:  # told to the server, which raises it
            if not isinstance(error, OctavoError):
                log.exception("the model could not be loaded")
            self._speaker.say(wire.Failed(kind_of(error), sentence_of(error)))
            self._has_failed.set()
            return
        self._speaker.say(wire.Ready(engine.info))
        # Probes must fail before a client is told: the server's streams end by this message.
        engine.on_death(self._speaker.tell_death)
        self._engine = engine

    def _report(self, stage: Stage, share: float) -> None:
        self._speaker.say(wire.Loading(stage, share))


def _is_closed(file: int) -> bool:
    """Whether the other end of a pipe, from which nothing is ever sent, is gone."""
    readable, _, _ = select.select([file], [], [], 0)
    return bool(readable) and os.read(file, 1) == b""


def main() -> None:
    # The server decides when it ends: a signal to the group, as of Ctrl-C, is not for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context = zmq.Context()
    commands, reports = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (commands, reports):
        socket.set_hwm(0)  # bounded by the requests themselves
    reports.linger = _LINGER_MS
    boot_path, commands_address, reports_address = sys.argv[1:]
    commands.connect(commands_address)
    reports.connect(reports_address)
    speaker = Speaker(reports)
    code = CoreProcess(commands, speaker).run(wire.decode_boot(Path(boot_path).read_bytes()))
    commands.close(linger=0)
    speaker.close()
    context.term()  # waits until the last words have left
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a device library, or a load, may still be at work


if __name__ == "__main__":
    main()
