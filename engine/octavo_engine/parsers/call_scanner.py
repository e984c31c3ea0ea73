"""Reads one tool call's JSON object, `{"name": ..., "arguments": {...}}`, as it comes.

The name is given out when it is complete, the arguments as the model writes them, in any order of
the two. Knows nothing of what stands around the object.
"""

import json
from collections.abc import Callable
from enum import Enum

from octavo_engine.parsers.message import MessageWriter

_ARGUMENT_KEYS = ("arguments", "parameters")
_KEYS = ("name", "id", "type", *_ARGUMENT_KEYS)
"""An object with any other is no call; so other JSON is not held back to its end."""
_SPACE = " \t\r\n"


class CallState(Enum):
    READING = "reading"
    DONE = "done"
    """The object is closed."""
    BROKEN = "broken"
    """It is no call."""


class ValueReader:
    """Finds the end of one JSON value."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False
        self._is_scalar = False
        self._num_read = 0

    def read(self, text: str) -> int | None:
        """Characters of `text` that belong to the value when it ends within, else None: all do."""
        for idx, char in enumerate(text):
            if self._is_scalar and char in ",}]" + _SPACE:
                return idx
            self._num_read += 1
            if self._ends_with(char):
                return idx + 1
        return None

    def _ends_with(self, char: str) -> bool:
        if self._is_in_string:
            if self._is_escaped:
                self._is_escaped = False
            elif char == "\\":
                self._is_escaped = True
            elif char == '"':
                self._is_in_string = False
                return self._depth == 0
            return False
        if char == '"':
            self._is_in_string = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            return self._depth <= 0
        elif self._num_read == 1:
            self._is_scalar = True
        return False


class CallScanner:
    """Writes the call to `out` while it reads; `text` is all that it has read."""

    def __init__(self, out: MessageWriter, is_known: Callable[[str], bool]) -> None:
        """is_known: whether a function may have this name; else the object is no call."""
        self._out = out
        self._is_known = is_known
        self._step: Callable[[str], int] = self._open
        self._key = ""
        self._value = ""
        self._reader = ValueReader()
        self._name: str | None = None
        self._early_arguments = ""
        """Arguments that came before the name."""
        self._has_arguments = False
        self.text = ""
        self.state = CallState.READING

    @property
    def is_started(self) -> bool:
        """The call's name is out: what follows can no longer become content."""
        return self._name is not None

    def push(self, text: str) -> str:
        """What is left of `text` when the object has ended, or is none."""
        start = 0
        while self.state is CallState.READING and start < len(text):
            taken = self._step(text[start:])
            start += taken
        self.text += text[:start]
        return text[start:]

    # Each step returns how many characters it has taken: all, or those up to a change of step.

    def _open(self, text: str) -> int:
        char, taken = _next_char(text)
        if char == "{":
            self._step = self._first_key
        return taken if char in ("{", "") else self._break(taken - 1)

    def _first_key(self, text: str) -> int:
        char, taken = _next_char(text)
        if char == "}":
            return self._close(taken)
        return self._open_key(char, taken)

    def _next_key(self, text: str) -> int:
        return self._open_key(*_next_char(text))

    def _open_key(self, char: str, taken: int) -> int:
        if char == '"':
            self._reader, self._value = ValueReader(), char
            self._reader.read(char)
            self._step = self._read_key
        return taken if char in ('"', "") else self._break(taken - 1)

    def _colon(self, text: str) -> int:
        char, taken = _next_char(text)
        if char == ":":
            self._step = self._start_value
        return taken if char in (":", "") else self._break(taken - 1)

    def _after_value(self, text: str) -> int:
        char, taken = _next_char(text)
        if char == "}":
            return self._close(taken)
        if char == ",":
            self._step = self._next_key
        return taken if char in (",", "") else self._break(taken - 1)

    def _read_key(self, text: str) -> int:
        end = self._reader.read(text)
        self._value += text[:end]
        if end is None:
            return len(text)
        key = _loaded(self._value)
        if key not in _KEYS:
            return self._break(end)
        self._key, self._step = str(key), self._colon
        return end

    def _start_value(self, text: str) -> int:
        char, taken = _next_char(text)
        if char == "":
            return taken
        if char in ",}]:":
            return self._break(taken - 1)
        self._reader, self._value = ValueReader(), ""
        is_raw = self._is_arguments and char in "{["
        self._step = self._read_arguments if is_raw else self._read_value
        return taken - 1

    @property
    def _is_arguments(self) -> bool:
        return self._key in _ARGUMENT_KEYS and not self._has_arguments

    def _read_arguments(self, text: str) -> int:
        end = self._reader.read(text)
        self._give_arguments(text[:end])
        if end is None:
            return len(text)
        self._note_arguments()
        self._step = self._after_value
        return end

    def _read_value(self, text: str) -> int:
        end = self._reader.read(text)
        self._value += text[:end]
        if end is None:
            return len(text)
        self._step = self._after_value
        if not self._take_value(_loaded(self._value)):
            return self._break(end)
        return end

    def _take_value(self, value: object) -> bool:
        if self._key == "name":
            return self._name is None and isinstance(value, str) and self._give_name(value)
        if self._is_arguments and value is not None:
            # Some models write the arguments as a string of JSON.
            self._give_arguments(value if isinstance(value, str) else json.dumps(value))
            self._note_arguments()
        return True

    def _give_name(self, name: str) -> bool:
        if not self._is_known(name):
            return False
        self._name = name
        self._out.start_call(name)
        self._out.arguments(self._early_arguments)
        if self._has_arguments:
            self._out.end_arguments()
        return True

    def _give_arguments(self, text: str) -> None:
        if self._name is None:
            self._early_arguments += text
        else:
            self._out.arguments(text)

    def _note_arguments(self) -> None:
        """They are complete."""
        self._has_arguments = True
        if self._name is not None:
            self._out.end_arguments()

    def _close(self, taken: int) -> int:
        if self._name is None:
            return self._break(taken)
        self.state = CallState.DONE
        self._give_none()
        return taken

    def _break(self, taken: int) -> int:
        self.state = CallState.BROKEN
        if self._name is not None:
            self._give_none()
        return taken

    def _give_none(self) -> None:
        if not self._has_arguments:
            self._out.arguments("{}")
            self._note_arguments()


def _next_char(text: str) -> tuple[str, int]:
    """The first character that is no space, empty when there is none; characters up to its end."""
    rest = text.lstrip(_SPACE)
    return rest[:1], len(text) - len(rest) + len(rest[:1])


def _loaded(text: str) -> object:
    """None for what is no JSON, which no name and no key is."""
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
