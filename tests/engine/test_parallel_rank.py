"""A rank above 0 over a fake runner: it runs what rank 0 has sent, and nothing else."""

import threading
from collections.abc import Iterator
from typing import cast

import pytest
import zmq
from tests.engine.fake_runner import FakeRunner
from tests.engine.stuck_runner import StuckRunner
from torch._C._distributed_c10d import Store

from octavo_engine.batch import AdmittedRow, Batch, RowWork, Runner
from octavo_engine.parallel import rank_process, wire
from octavo_engine.parallel.plan import PlanChain
from octavo_engine.parallel.rank_process import Rank
from octavo_engine.parallel.setup import setup_on_this_host
from octavo_engine.parallel.sockets import Sender, make_receiver
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.version import octavo_version


class Rank0:
    """The other side of a rank's sockets."""

    def __init__(self, runner: Runner) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.commands, self._reports = Sender(self._context), make_receiver(self._context)
        self.commands.socket.bind("inproc://commands")
        self._reports.bind("inproc://reports")
        self._own, sender = make_receiver(self._context), Sender(self._context)
        self._own.connect("inproc://commands")
        sender.socket.connect("inproc://reports")
        self._sender = sender
        rank = Rank(setup_on_this_host(1, 2), cast(Store, None), self._own, sender)
        rank.use(runner)
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, args=(rank,))
        self._thread.start()

    def _run(self, rank: Rank) -> None:
        self.code = rank.run()

    def send(self, command: wire.Command) -> None:
        assert self.commands.send(wire.encode(command))

    def hear(self, kind: type[wire.Report]) -> wire.Report:
        """The next message of this kind."""
        while True:
            assert self._reports.poll(30_000), "nothing came"
            report = wire.decode_report(self._reports.recv())
            if isinstance(report, kind):
                return report

    def wait(self) -> int | None:
        self._thread.join(30)
        return self.code

    def close(self) -> None:
        self.send(wire.Close())
        self._thread.join(30)
        for end in (self.commands, self._sender):
            end.close(0)
        for receiver in (self._own, self._reports):
            receiver.close(0)
        self._context.term()


@pytest.fixture
def rank0() -> Iterator[Rank0]:
    made = Rank0(FakeRunner())
    yield made
    made.close()


def plan(step_id: int) -> bytes:
    admitted = AdmittedRow(
        row=step_id,
        token_ids=[5, 6, 7],
        num_prompt_tokens=3,
        params=SamplingParams(temperature=0.0),
        seed=1,
        block_tables=[[1]],
    )
    work = RowWork(step_id, 0, 3, True, "prefill")
    return wire.encode(Batch(step_id=step_id, admitted=[admitted], work=[work]))


def test_a_rank_says_what_came_of_each_step(rank0: Rank0) -> None:
    assert rank0.hear(wire.Hello) == wire.Hello(1, 2, octavo_version())
    chain = PlanChain()
    for step_id in (0, 1):
        rank0.send(wire.Step(plan(step_id), chain.add(plan(step_id))))
        done = rank0.hear(wire.Done)
        assert isinstance(done, wire.Done)
        assert (done.step_id, len(done.token_ids)) == (step_id, 1)
    rank0.send(wire.Close())
    assert rank0.wait() == 0


def test_a_step_that_was_lost_ends_the_rank(rank0: Rank0) -> None:
    chain = PlanChain()
    chain.add(plan(0))
    rank0.send(wire.Step(plan(1), chain.add(plan(1))))
    failed = rank0.hear(wire.Failed)
    assert isinstance(failed, wire.Failed)
    assert "the hash of the plan of step 1" in failed.message
    assert rank0.wait() == 1


def test_a_step_that_fails_ends_the_rank_with_its_reason() -> None:
    rank0 = Rank0(FakeRunner(raise_in_step=lambda batch: RuntimeError("device lost")))
    rank0.send(wire.Step(plan(0), PlanChain().add(plan(0))))
    failed = rank0.hear(wire.Failed)
    assert isinstance(failed, wire.Failed)
    assert failed.message == "RuntimeError: device lost"
    assert rank0.wait() == 1
    rank0.close()


def test_a_rank_ends_with_a_failure_when_its_step_does_not_end_after_a_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_process, "_CLOSE_LIMIT_S", 0.1)
    runner = StuckRunner()
    rank0 = Rank0(runner)
    rank0.send(wire.Step(plan(0), PlanChain().add(plan(0))))
    assert runner.has_launched.wait(30)
    rank0.send(wire.Close())
    code = rank0.wait()
    runner.released.set()
    rank0.close()
    assert code == 1
