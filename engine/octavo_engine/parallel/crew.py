"""Rank 0's connection to the other ranks: sends them what to do, watches them on a thread.

The first thing that goes wrong is the crew's end: the processes that it has started are killed,
with their stacks in the log where they hang or differ, and who asked to be told is told.
"""

import faulthandler
import sys
import threading
import time
from collections.abc import Callable, Sequence

import structlog
import zmq
from torch._C._distributed_c10d import Store

from octavo_engine.batch import Batch, StepResult
from octavo_engine.errors import RankFailed
from octavo_engine.messages import EngineInfo
from octavo_engine.parallel import wire
from octavo_engine.parallel.plan import PlanChain
from octavo_engine.parallel.processes import STACK_WAIT_S, RankProcess
from octavo_engine.parallel.setup import START_LIMIT_S, RankSetup
from octavo_engine.parallel.sockets import LINGER_MS, Sender, address_towards, bind, make_receiver
from octavo_engine.parallel.watchdog import Failure, Watchdog, info_difference
from octavo_engine.version import octavo_version

log = structlog.get_logger(__name__)

BEAT_PERIOD_S = 0.25
_LISTEN_MS = 50
_DIAGNOSIS_S = 2.0
"""Time in which the reason for a failed step shows itself in another rank."""
_CLOSE_LIMIT_S = 10.0


class Crew:
    def __init__(self, setup: RankSetup, store: Store, limit_s: float) -> None:
        """Publishes where the other ranks find us. limit_s: of silence, and of a step."""
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._reports = make_receiver(self._context)
        self._senders = {rank: Sender(self._context) for rank in range(1, setup.size)}
        try:
            self._publish(setup, store)
        except BaseException:
            self._context.destroy(0)  # by itself it would wait for its sockets, and hang
            raise
        self._watchdog = Watchdog(setup.size, limit_s, octavo_version(), time.monotonic)
        self._lock = threading.Lock()
        """Guards the watchdog's book and what follows from it: two threads write them."""
        self._chain = PlanChain()
        self._processes: Sequence[RankProcess] = ()
        self._boot = b""
        self._to_boot = set(self._senders)
        self._failure: Failure | None = None
        self._told: list[Callable[[str], None]] = []
        self._has_failed = threading.Event()
        self._is_closing = threading.Event()
        self._started_s = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="octavo-ranks", daemon=True)

    def _publish(self, setup: RankSetup, store: Store) -> None:
        """Where the sockets are. Raises ConfigError."""
        address, source = setup.address, "MASTER_ADDR"
        if setup.is_store_given:  # by a launcher that may be on another host than rank 0
            address, source = address_towards(address), "the address towards the launcher's store"
        store.set("reports", bind(self._reports, address, source))
        for rank, sender in self._senders.items():
            store.set(f"commands/{rank}", bind(sender.socket, address, source))

    def start(self, processes: Sequence[RankProcess], boot: wire.Boot) -> None:
        """processes: those of the other ranks that are ours to end."""
        self._processes, self._boot = processes, wire.encode(boot)
        self._thread.start()

    @property
    def failure(self) -> Exception | None:
        return None if self._failure is None else self._failure.error

    def on_failure(self, told: Callable[[str], None]) -> None:
        """`told` is called once; at once where the crew has failed already."""
        with self._lock:
            if self._failure is None:
                self._told.append(told)
                return
        told(str(self._failure.error))

    def are_ready(self, own: EngineInfo) -> bool:
        """Whether all have loaded. Raises RankFailed where one has come to something else."""
        infos = self._watchdog.infos()
        for rank, info in infos.items():
            if (what := info_difference(own, info)) is not None:
                raise RankFailed(f"ranks 0 and {rank} differ: {what}")
        return len(infos) == len(self._senders)

    # Steps, by the core's thread.

    def send_step(self, batch: Batch) -> int:
        """Returns the step's number in the order of launch."""
        plan = wire.encode(batch)
        step = wire.encode(wire.Step(plan, self._chain.add(plan)))
        with self._lock:
            at = self._watchdog.note_launch()
        for sender in self._senders.values():
            sender.send(step)
        return at

    def note_result(self, at: int, result: StepResult) -> None:
        """Of rank 0's own runner."""
        with self._lock:
            found = self._watchdog.note_result(at, result)
        if found is not None:
            self._fail(found)
        if self._failure is not None:
            raise self._failure.error

    def explain(self, error: Exception) -> Exception:
        """Why a step has failed here: another rank's failure shows as an error of the group."""
        self._has_failed.wait(_DIAGNOSIS_S)
        return self.failure or error

    # The end.

    def close(self) -> None:
        """The processes end by themselves, or are killed."""
        self._is_closing.set()
        if self._thread.is_alive():
            self._thread.join()
        for sender in self._senders.values():
            sender.send(wire.encode(wire.Close()))
        for process in self._processes:
            if self._failure is None and not process.wait(_CLOSE_LIMIT_S):
                log.warning("a rank does not end by itself, it is killed", rank=process.rank)
            process.kill()
        for sender in self._senders.values():
            sender.close(LINGER_MS if self._failure is None else 0)
        self._reports.close(0)
        self._context.term()

    # The watching thread.

    def _watch(self) -> None:
        try:
            self._watch_until_it_ends()
        except Exception as error:  # whatever ends this thread ends the crew, in the open
            log.exception("the ranks cannot be watched")
            self._fail(Failure(0, RankFailed(f"the ranks cannot be watched: {error!r}")))

    def _watch_until_it_ends(self) -> None:
        last_beat_s = 0.0
        while not self._is_closing.is_set() and self._failure is None:
            found = self._listen() or self._look()
            if found is not None:
                self._fail(found)
            self._send_boots()
            if time.monotonic() - last_beat_s > BEAT_PERIOD_S:
                last_beat_s = time.monotonic()
                for sender in self._senders.values():
                    sender.send(wire.encode(wire.Beat()))

    def _listen(self) -> Failure | None:
        """Takes all that has come."""
        wait_ms = _LISTEN_MS
        while self._reports.poll(wait_ms):
            wait_ms = 0
            report = wire.decode_report(self._reports.recv())
            with self._lock:
                found = self._watchdog.take(report)
            if found is not None:
                return found
        return None

    def _look(self) -> Failure | None:
        """For ranks that have ended without a word, or say nothing."""
        for process in self._processes:
            how = process.how_it_ended()
            if how is not None:
                # Its last words may be on their way.
                said = self._listen()
                text = f"rank {process.rank} (process {process.pid}) has ended by {how}"
                return said or Failure(process.rank, RankFailed(text))
        with self._lock:
            missing = self._watchdog.missing()
            if missing and time.monotonic() - self._started_s > START_LIMIT_S:
                text = f"rank {missing[0]} has not come within {START_LIMIT_S:g} s"
                return Failure(missing[0], RankFailed(text))
            return self._watchdog.overdue()

    def _send_boots(self) -> None:
        with self._lock:
            ready = self._to_boot.difference(self._watchdog.missing())
        for rank in ready:
            if self._senders[rank].send(self._boot):
                self._to_boot.discard(rank)

    def _fail(self, failure: Failure) -> None:
        log.error("a rank has failed", rank=failure.rank, reason=str(failure.error))
        if failure.shows_in_stacks:
            # Before anybody is told: this process may then end at once.
            self._tell_stacks()
        with self._lock:
            if self._failure is not None:
                return
            self._failure = failure
            told, self._told = self._told, []
        for tell in told:
            tell(str(failure.error))
        self._has_failed.set()
        for process in self._processes:
            process.kill()

    def _tell_stacks(self) -> None:
        """Of all ranks: who waits for whom is seen from both sides."""
        for sender in self._senders.values():
            sender.send(wire.encode(wire.TellStack()))
        for process in self._processes:
            process.tell_stack()
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
        time.sleep(STACK_WAIT_S)
