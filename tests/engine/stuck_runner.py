"""A runner of several ranks whose steps do not end, as when another rank has gone, until a test
lets them fail."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.engine.fake_runner import FakeRunner

from octavo_engine.batch import Batch, StepResult


@dataclass(frozen=True)
class StuckStep:
    released: threading.Event

    def result(self) -> StepResult:
        self.released.wait()
        raise RuntimeError("the step was let go")


class StuckRunner:
    def __init__(self, vocab_size: int = FakeRunner().vocab_size) -> None:
        fake = FakeRunner(vocab_size=vocab_size)
        self.info, self.kv_groups = fake.info, fake.kv_groups
        self.num_host_blocks = fake.num_host_blocks
        self.has_launched = threading.Event()
        self.released = threading.Event()
        self.has_closed = threading.Event()
        self._told: list[Callable[[str], None]] = []

    def launch(self, batch: Batch) -> StuckStep:
        self.has_launched.set()
        return StuckStep(self.released)

    def on_failure(self, told: Callable[[str], None]) -> None:
        self._told.append(told)

    def fail(self, reason: str) -> None:
        for tell in self._told:
            tell(reason)

    def close(self) -> None:
        self.has_closed.set()
