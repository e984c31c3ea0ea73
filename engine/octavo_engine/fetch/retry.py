"""Trying again after temporary failures, with growing pauses."""

import time
from collections.abc import Callable
from typing import TypeVar

import structlog

from octavo_engine.fetch.errors import DownloadFailed, TemporaryFailure

log = structlog.get_logger(__name__)
Answer = TypeVar("Answer")
MAX_ATTEMPTS = 6


class Patience:
    """Failures in a row without any progress between them."""

    def __init__(self, first_pause_s: float) -> None:
        self._first_pause_s = first_pause_s
        self._num_failures = 0

    def has_moved(self) -> None:
        self._num_failures = 0

    def wait_after(self, error: TemporaryFailure) -> None:
        """Raises DownloadFailed when it has failed too often."""
        self._num_failures += 1
        if self._num_failures >= MAX_ATTEMPTS:
            raise DownloadFailed(f"{error} (tried {MAX_ATTEMPTS} times)") from error
        pause_s = self._first_pause_s * 2.0 ** (self._num_failures - 1)
        log.warning("trying_again", error=str(error), pause_s=pause_s)
        time.sleep(pause_s)


def patiently(action: Callable[[], Answer], patience: Patience) -> Answer:
    while True:
        try:
            return action()
        except TemporaryFailure as error:
            patience.wait_after(error)
