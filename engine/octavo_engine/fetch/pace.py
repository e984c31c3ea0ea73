"""How fetching goes about its work: sizes and pauses."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pace:
    num_workers: int = 8
    """Parts that are read at the same time."""
    part_bytes: int = 64 * 2**20
    """What a restart may have to read once more."""
    first_pause_s: float = 1.0
    """After a failure; it doubles with each that follows."""
    lock_poll_s: float = 1.0
