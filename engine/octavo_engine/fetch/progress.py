"""How far a download is, told now and then. Used by several threads at once."""

import threading
import time
from collections.abc import Callable

import structlog

log = structlog.get_logger(__name__)
GIB = 2**30
_TELL_EVERY_S = 5.0


class Progress:
    def __init__(self, total_bytes: int, tell: Callable[[str], None]) -> None:
        """tell: takes a sentence for people, every few seconds."""
        self._total_bytes = total_bytes
        self._tell = tell
        self._done_bytes = 0
        self._lock = threading.Lock()
        self._told_s = time.monotonic()

    def add(self, num_bytes: int) -> None:
        with self._lock:
            self._done_bytes += num_bytes
            now_s = time.monotonic()
            if now_s - self._told_s < _TELL_EVERY_S:
                return
            self._told_s = now_s
        log.info("fetching", done_bytes=self._done_bytes, total_bytes=self._total_bytes)
        self._tell(str(self))

    def __str__(self) -> str:
        return f"{gib(self._done_bytes)} of {gib(self._total_bytes)} are there"


def gib(num_bytes: int) -> str:
    """For people: small amounts in MiB."""
    if num_bytes < GIB // 10:
        return f"{num_bytes / 2**20:.1f} MiB"
    return f"{num_bytes / GIB:.1f} GiB"
