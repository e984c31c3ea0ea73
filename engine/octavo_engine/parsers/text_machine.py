"""What the state machines over text share: a buffer, and states that take from it what is certain.

The result does not depend on how the text is cut: a state waits until what comes next is decided.
"""

from collections.abc import Callable, Sequence

_Step = Callable[[], bool]


class TextMachine:
    """A subclass sets `_state` to a method that takes from `_buffer` what it can decide.

    It returns False when it needs more text, or when the text is over and `_is_final` is set.
    """

    def __init__(self) -> None:
        self._buffer = ""
        self._is_final = False
        self._state: _Step = self._wait

    def push(self, text: str) -> None:
        self._buffer += text
        self._run()

    def finish(self) -> None:
        """The text is over: nothing that is held can go on."""
        self._is_final = True
        self._run()

    def _run(self) -> None:
        while self._state():
            pass

    def _wait(self) -> bool:
        return False

    def _take(self, count: int) -> str:
        taken, self._buffer = self._buffer[:count], self._buffer[count:]
        return taken

    def _take_white_space(self) -> str:
        return self._take(len(self._buffer) - len(self._buffer.lstrip()))

    def _starts_with(self, marker: str) -> bool | None:
        """None: the buffer is too short to tell."""
        if self._buffer.startswith(marker):
            return True
        undecided = not self._is_final and marker.startswith(self._buffer)
        return None if undecided else False


def num_safe_chars(text: str, markers: Sequence[str]) -> int:
    """Characters at the start of `text` that cannot belong to a marker that is still coming."""
    longest = max(map(len, markers), default=0)
    for start in range(max(0, len(text) - longest + 1), len(text)):
        if any(marker.startswith(text[start:]) for marker in markers):
            return start
    return len(text)
