"""Which services wait for a reconcile: each at most once waiting, at most once running.

A wake while a service is being reconciled is kept and served afterwards. Failures back off per
service. Knows nothing of what a reconcile is.
"""

import asyncio
import time
from dataclasses import dataclass

from octavo_operator.cache import ServiceKey

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 120.0


@dataclass
class _Entry:
    is_running: bool = False
    waiting_since_s: float | None = None
    """Monotonic; None when it does not wait."""
    num_failures: int = 0
    later: asyncio.TimerHandle | None = None
    not_before_s: float = 0.0
    """Monotonic; as the API server has asked. Wakes before that are kept until then."""


class WorkQueue:
    def __init__(self) -> None:
        self._entries: dict[ServiceKey, _Entry] = {}
        self._queue: asyncio.Queue[ServiceKey] = asyncio.Queue()

    def __len__(self) -> int:
        return self._queue.qsize()

    def wake(self, key: ServiceKey) -> None:
        entry = self._entries.setdefault(key, _Entry())
        if entry.waiting_since_s is not None:
            return
        too_early_s = entry.not_before_s - time.monotonic()
        if too_early_s > 0:
            if entry.later is None:
                self._wake_in(entry, key, too_early_s)
            return
        entry.waiting_since_s = time.monotonic()
        if not entry.is_running:
            self._queue.put_nowait(key)

    def wake_later(self, key: ServiceKey, delay_s: float) -> None:
        """The earliest that was asked for counts; a wake for another cause does not cancel it."""
        entry = self._entries.setdefault(key, _Entry())
        loop = asyncio.get_running_loop()
        if entry.later is None or entry.later.when() > loop.time() + delay_s:
            self._wake_in(entry, key, delay_s)

    async def take(self) -> tuple[ServiceKey, float]:
        """The next service, and how long it has waited in seconds; must be given to `done`."""
        key = await self._queue.get()
        entry = self._entries[key]
        entry.is_running = True
        since_s = entry.waiting_since_s
        entry.waiting_since_s = None
        return key, 0.0 if since_s is None else time.monotonic() - since_s

    def done(self, key: ServiceKey) -> None:
        self._finish(key).num_failures = 0
        self._tidy(key)

    def failed(self, key: ServiceKey, at_least_s: float = 0.0) -> float:
        """Tries again after a delay that doubles with each failure; the delay in seconds.

        `at_least_s` is what the API server asks for: no event makes the next try come earlier.
        """
        entry = self._entries[key]
        entry.not_before_s = time.monotonic() + at_least_s
        if at_least_s > 0:
            entry.waiting_since_s = None
        self._finish(key)
        delay_s = min(FIRST_BACKOFF_S * 2.0**entry.num_failures, LONGEST_BACKOFF_S)
        entry.num_failures += 1
        delay_s = max(delay_s, at_least_s)
        self._wake_in(entry, key, delay_s)
        return delay_s

    def _wake_in(self, entry: _Entry, key: ServiceKey, delay_s: float) -> None:
        if entry.later is not None:
            entry.later.cancel()
        entry.later = asyncio.get_running_loop().call_later(delay_s, self._due, key)

    def _finish(self, key: ServiceKey) -> _Entry:
        entry = self._entries[key]
        entry.is_running = False
        if entry.waiting_since_s is not None:
            self._queue.put_nowait(key)
        return entry

    def _due(self, key: ServiceKey) -> None:
        self._entries[key].later = None
        self.wake(key)

    def _tidy(self, key: ServiceKey) -> None:
        entry = self._entries[key]
        if entry.waiting_since_s is None and entry.later is None:
            del self._entries[key]
