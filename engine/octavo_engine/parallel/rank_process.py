"""A rank above 0: `python -m octavo_engine.parallel.rank_process`, with the variables of `setup`.

Its main thread listens to rank 0, launches the steps it is told and says that it lives; threads
load, and report what has come of a step. It ends with rank 0: when rank 0 says so, is silent for
too long, or has gone, which its child sees at once on the pipe that is its standard input.
"""

import faulthandler
import os
import signal
import sys
import threading
import time
from queue import SimpleQueue

import structlog
import zmq
from torch._C._distributed_c10d import Store

from octavo_engine.batch import Runner, StepHandle, StepResult
from octavo_engine.core.failures import kind_of, sentence_of
from octavo_engine.core.in_process import settle_process
from octavo_engine.errors import ConfigError, OctavoError, RankFailed
from octavo_engine.logs import configure_logs
from octavo_engine.parallel import wire
from octavo_engine.parallel.plan import PlanChain
from octavo_engine.parallel.processes import CHILD, STACK_SIGNAL
from octavo_engine.parallel.rendezvous import build_share, open_store, own_entries
from octavo_engine.parallel.setup import START_LIMIT_S, RankSetup, setup_from_launcher
from octavo_engine.parallel.sockets import Sender, connect, make_receiver
from octavo_engine.progress import silent
from octavo_engine.version import octavo_version

log = structlog.get_logger(__name__)

_BEAT_PERIOD_MS = 250
_CLOSE_LIMIT_S = 10.0
_PATIENCE = 4.0
"""Rank 0 is given more time than it gives: its end alone does not need its word to be seen."""


class Rank:
    def __init__(
        self,
        setup: RankSetup,
        store: Store,
        commands: "zmq.Socket[bytes]",
        reports: Sender,
    ) -> None:
        self._setup = setup
        self._store = store
        self._commands = commands
        self._reports = reports
        self._chain = PlanChain()
        self._runner: Runner | None = None
        self._handles: SimpleQueue[StepHandle | None] = SimpleQueue()
        self._finisher = threading.Thread(target=self._finish_steps, daemon=True)
        self._has_failed = threading.Event()
        self._limit_s = START_LIMIT_S
        """Of rank 0's silence."""

    def run(self) -> int:
        """Until told to close, left alone or failed; returns the exit code."""
        self._say(wire.Hello(self._setup.rank, self._setup.size, octavo_version()))
        heard_s = time.monotonic()
        while not self._has_failed.is_set():
            if self._commands.poll(_BEAT_PERIOD_MS):
                heard_s = time.monotonic()
                if not self._handle(wire.decode_command(self._commands.recv())):
                    return 1 if self._has_failed.is_set() else 0
            elif time.monotonic() - heard_s > self._limit_s:
                log.error("rank 0 is silent", seconds=time.monotonic() - heard_s)
                return 1
            self._say(wire.Alive(self._setup.rank))
        return 1

    def _handle(self, command: wire.Command) -> bool:
        """False: this was the last."""
        match command:
            case wire.Boot():
                configure_logs(command.log_format)
                self._limit_s = _PATIENCE * command.config.parallel.rank_timeout_s
                threading.Thread(target=self._load, args=(command,), daemon=True).start()
            case wire.Step():
                self._launch(command)
            case wire.TellStack():
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
            case wire.Close():
                self._close()
                return False
        return True

    def _load(self, boot: wire.Boot) -> None:
        try:
            config, device = boot.config, boot.device
            runner, _ = build_share(config, self._setup, self._store, device, None, silent)
        except BaseException as error:  # told to rank 0, which raises it
            self._fail(error, "the model could not be loaded")
            return
        settle_process()
        self.use(runner)

    def use(self, runner: Runner) -> None:
        """The steps to come run on it."""
        self._runner = runner
        self._finisher.start()
        self._say(wire.Ready(self._setup.rank, runner.info))

    def _launch(self, step: wire.Step) -> None:
        assert self._runner is not None, "rank 0 sends no step before this rank is ready"
        batch = wire.decode_plan(step.plan)
        if self._chain.add(step.plan) != step.chain:
            what = f"the hash of the plan of step {batch.step_id} and those before is not rank 0's"
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            self._fail(RankFailed(what), "not run")
            return
        try:
            self._handles.put(self._runner.launch(batch))
        except Exception as error:
            self._fail(error, "a step could not be launched")

    def _close(self) -> None:
        self._handles.put(None)
        if self._runner is None:
            return
        # With a rank that has failed a step may never end, and nobody else ends this process.
        self._finisher.join(_CLOSE_LIMIT_S)
        if self._finisher.is_alive():
            log.error("a step does not end", rank=self._setup.rank, limit_s=_CLOSE_LIMIT_S)
            self._has_failed.set()
        if not self._has_failed.is_set():
            self._runner.close()

    # The finishing thread.

    def _finish_steps(self) -> None:
        while (handle := self._handles.get()) is not None:
            try:
                result = handle.result()
            except Exception as error:
                self._fail(error, "a step has failed")
                return
            self._say(self._done(result))

    def _done(self, result: StepResult) -> wire.Done:
        return wire.Done(
            self._setup.rank,
            result.step_id,
            [token.token_id for token in result.sampled],
            result.is_graph,
            result.num_padded_rows,
        )

    def _say(self, report: wire.Report) -> None:
        self._reports.send(wire.encode(report))

    def _fail(self, error: BaseException, what: str) -> None:
        message = sentence_of(error)
        if not isinstance(error, OctavoError):
            log.exception(what, rank=self._setup.rank, exc_info=error)
            message = f"{type(error).__name__}: {message}"
        self._say(wire.Failed(self._setup.rank, kind_of(error), message))
        self._has_failed.set()


def run_rank(setup: RankSetup) -> int:
    """Meets rank 0 and does what it says; returns the exit code. Raises ConfigError."""
    # Rank 0 decides when this ends: a signal to the group, as of Ctrl-C, is not for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL, all_threads=True)
    store = own_entries(open_store(setup), setup)
    context = zmq.Context()
    commands, reports = make_receiver(context), Sender(context)
    connect(commands, store.get(f"commands/{setup.rank}").decode())
    connect(reports.socket, store.get("reports").decode())
    code = Rank(setup, store, commands, reports).run()
    commands.close(linger=0)
    reports.close()
    context.term()  # waits until the last words have left
    return code


def _end_with_parent() -> None:
    """Nothing is ever sent on the pipe: it ends when rank 0's process does."""
    while os.read(sys.stdin.fileno(), 1) != b"":
        pass
    os._exit(1)


def main() -> None:
    if CHILD in sys.argv:
        threading.Thread(target=_end_with_parent, daemon=True).start()
    setup = setup_from_launcher(os.environ)
    if setup is None:
        raise ConfigError("a rank needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT")
    code = run_rank(setup)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a device library, or a load, may still be at work


if __name__ == "__main__":
    main()
