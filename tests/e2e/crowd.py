"""Clients that chat without a pause, through the Service, until they are told to stop."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.e2e import chat


@dataclass
class Crowd:
    base_url: str
    max_tokens: int
    num_answers: int = 0
    failures: list[str] = field(default_factory=list)
    """One sentence for each request that got no whole answer."""
    _threads: list[tuple[threading.Thread, threading.Event]] = field(default_factory=list)

    def grow(self, number: int) -> None:
        for _ in range(number):
            leave = threading.Event()
            thread = threading.Thread(target=self._chat_until, args=(leave,), daemon=True)
            self._threads.append((thread, leave))
            thread.start()

    def shrink(self, number: int) -> None:
        """So many leave, each after the answer that it gets now."""
        leaving, self._threads = self._threads[:number], self._threads[number:]
        for _, leave in leaving:
            leave.set()
        for thread, _ in leaving:
            thread.join()

    def _chat_until(self, leave: threading.Event) -> None:
        while not leave.is_set():
            try:
                answer = chat.ask(self.base_url, max_tokens=self.max_tokens)
            except Exception as error:  # whatever it is, the test is about there being none
                self.failures.append(f"{type(error).__name__}: {error}")
                return
            if answer.num_tokens == 0:
                self.failures.append(f"a stream without an end: {answer}")
            self.num_answers += 1


@contextmanager
def crowd(base_url: str, *, max_tokens: int) -> Iterator[Crowd]:
    made = Crowd(base_url, max_tokens)
    yield made
    made.shrink(len(made._threads))
