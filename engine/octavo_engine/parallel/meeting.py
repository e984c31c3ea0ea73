"""Where ranks wait for each other after work that takes each its own time, as loading does.

A call of a group has a limit and names nobody; here, in the store, is seen who is missing. Nobody
is given up: that a rank has ended or is silent is noticed elsewhere, and ends the wait.
"""

import time
from collections.abc import Callable

import structlog
from torch._C._distributed_c10d import PrefixStore, Store

from octavo_engine.parallel.setup import RankSetup

log = structlog.get_logger(__name__)

_POLL_S = 0.02
_TELL_PERIOD_S = 30.0


class Meeting:
    def __init__(self, setup: RankSetup, store: Store) -> None:
        self._rank = setup.rank
        self._ranks = range(setup.size)
        self._store = PrefixStore("meeting", store)
        self._num_met = 0

    def wait(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Until all ranks have come as often as this one, or `is_over`."""
        at, self._num_met = self._num_met, self._num_met + 1
        self._store.set(f"{at}/{self._rank}", "")
        began_s = told_s = time.monotonic()
        while (missing := self._missing(at)) and not is_over():
            now_s = time.monotonic()
            if now_s - told_s > _TELL_PERIOD_S:
                told_s = now_s
                seconds = round(now_s - began_s)
                log.info("waiting for ranks", rank=self._rank, missing=missing, seconds=seconds)
            time.sleep(_POLL_S)

    def _missing(self, at: int) -> list[int]:
        return [rank for rank in self._ranks if not self._store.check([f"{at}/{rank}"])]
