"""Finds stop strings in text that comes in pieces, and holds back no more than it must.

Held back is the longest end of the text that begins some stop string. The result does not depend on
how the text is cut: the stop string that ends first wins, of two that end together the longer one.
"""

from collections.abc import Sequence
from typing import NamedTuple


class StopMatch(NamedTuple):
    stop: str
    start: int
    """Where the match begins in the text searched."""
    end: int


def first_match(text: str, stops: Sequence[str]) -> StopMatch | None:
    matches = [
        StopMatch(stop, start, start + len(stop))
        for stop in stops
        if (start := text.find(stop)) >= 0
    ]
    return min(matches, key=lambda match: (match.end, match.start), default=None)


def num_held_chars(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper beginning of a stop string."""
    longest = 0
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), longest, -1):
            if text.endswith(stop[:size]):
                longest = size
                break
    return longest


class StopStringFilter:
    """Passes text through until a stop string is complete; after that nothing may be pushed."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool) -> None:
        self._stops = [stop for stop in stops if stop]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """The text that can be given out now, and the stop string when one is complete."""
        if not self._stops:
            return text, None
        text = self._held + text
        match = first_match(text, self._stops)
        if match is not None:
            self._held = ""
            return text[: match.end if self._include_stop else match.start], match.stop
        num_held = num_held_chars(text, self._stops)
        self._held = text[len(text) - num_held :]
        return text[: len(text) - num_held], None

    def flush(self) -> str:
        """The held text: at the end of a sequence it can no longer become a stop string."""
        held, self._held = self._held, ""
        return held
