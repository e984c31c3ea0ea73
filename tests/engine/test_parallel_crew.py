"""Rank 0's connection to a rank that this test plays: what it does when the rank differs."""

import threading
from collections.abc import Iterator
from typing import cast

import pytest
import zmq
from torch._C._distributed_c10d import HashStore

from octavo_engine.batch import Batch, SampledToken, StepResult
from octavo_engine.config import EngineConfig, ModelSettings
from octavo_engine.errors import RankFailed
from octavo_engine.parallel import wire
from octavo_engine.parallel.crew import Crew
from octavo_engine.parallel.plan import PlanChain
from octavo_engine.parallel.processes import RankProcess
from octavo_engine.parallel.setup import setup_on_this_host
from octavo_engine.version import octavo_version


class Process:
    """Notes what is done to it."""

    rank, pid = 1, 0

    def __init__(self) -> None:
        self.done: list[str] = []

    def how_it_ended(self) -> None:
        return None

    def tell_stack(self) -> None:
        self.done.append("stack")

    def kill(self) -> None:
        self.done.append("kill")

    def wait(self, timeout_s: float) -> bool:
        return True


class Rank1:
    def __init__(self) -> None:
        store = HashStore()
        self.process = Process()
        self.crew = Crew(setup_on_this_host(0, 2), store, limit_s=60.0)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._reports = self._context.socket(zmq.PUSH)
        self._reports.connect(store.get("reports").decode())
        self._commands = self._context.socket(zmq.PULL)
        self._commands.connect(store.get("commands/1").decode())
        config = EngineConfig(model=ModelSettings(path="model"))
        processes = [cast(RankProcess, self.process)]
        self.crew.start(processes, wire.Boot(config, "cpu", "console"))
        self.say(wire.Hello(1, 2, octavo_version()))
        self.hear(wire.Boot)

    def say(self, report: wire.Report) -> None:
        self._reports.send(wire.encode(report))

    def hear(self, kind: type[wire.Command]) -> wire.Command:
        """The next of this kind."""
        while True:
            assert self._commands.poll(30_000), "nothing came"
            command = wire.decode_command(self._commands.recv())
            if isinstance(command, kind):
                return command

    def close(self) -> None:
        self.crew.close()
        for end in (self._reports, self._commands):
            end.close(0)
        self._context.term()


@pytest.fixture
def rank1() -> Iterator[Rank1]:
    made = Rank1()
    yield made
    made.close()


def test_a_step_comes_with_the_hash_of_all_plans(rank1: Rank1) -> None:
    chain = PlanChain()
    for step_id in range(3):
        rank1.crew.send_step(Batch(step_id=step_id, admitted=[], work=[]))
        step = rank1.hear(wire.Step)
        assert isinstance(step, wire.Step)
        assert wire.decode_plan(step.plan).step_id == step_id
        assert step.chain == chain.add(step.plan)


def test_a_rank_that_differs_is_killed_with_its_stack_in_the_log(
    rank1: Rank1, capfd: pytest.CaptureFixture[str]
) -> None:
    told: list[str] = []
    has_been_told = threading.Event()

    def tell(reason: str) -> None:
        told.append(reason)
        has_been_told.set()

    rank1.crew.on_failure(tell)
    at = rank1.crew.send_step(Batch(step_id=7, admitted=[], work=[]))
    rank1.crew.note_result(at, StepResult(step_id=7, sampled=[SampledToken(row=0, token_id=5)]))
    rank1.say(wire.Done(1, 7, [6], False, 0))
    assert has_been_told.wait(30)
    assert told == ["ranks 0 and 1 differ at step 0: token_ids is [5] and [6]"]
    assert isinstance(rank1.crew.failure, RankFailed)
    rank1.hear(wire.TellStack)
    assert rank1.process.done[0] == "stack"
    assert "crew.py" in capfd.readouterr().err  # rank 0's own
    at = rank1.crew.send_step(Batch(step_id=8, admitted=[], work=[]))
    with pytest.raises(RankFailed, match="differ at step 0"):
        rank1.crew.note_result(at, StepResult(step_id=8, sampled=[]))
    rank1.crew.close()
    assert rank1.process.done[-1] == "kill"
