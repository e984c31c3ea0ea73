"""Calls as bare JSON, which the whole answer consists of:

    {"name": "weather", "parameters": {"city": "Paris"}}; {"name": ...}
    [{"name": "weather", "arguments": {"city": "Paris"}}, ...]

Llama 3.x writes them so, at times behind `<|python_tag|>`, and so does any model that is asked to.
Only objects that name a known function are calls: all other JSON is an answer in JSON.
"""

from collections.abc import Collection

from octavo_engine.parsers.call_scanner import CallScanner, CallState
from octavo_engine.parsers.message import MessageWriter
from octavo_engine.parsers.tool_machine import ToolMachine

PYTHON_TAG = "<|python_tag|>"
_FENCES = ("```json", "```")
_SEPARATORS = ",;"


class JsonCalls(ToolMachine):
    def __init__(self, out: MessageWriter, *, only_one: bool, names: Collection[str]) -> None:
        super().__init__(out, only_one=only_one)
        self._names = frozenset(names)
        self._call = self._new_call()
        self._lead = ""
        """Read before the first object; content when that is no call."""
        self._state = self._start

    def _new_call(self) -> CallScanner:
        return CallScanner(self._out, self._names.__contains__)

    def _start(self) -> bool:
        """Decides by the beginning: a tag, a fence, a bracket, a brace; anything else is text."""
        self._lead += self._take_white_space()
        for marker in (PYTHON_TAG, *_FENCES):
            found = self._starts_with(marker)
            if found is None:
                return False
            if found:
                self._lead += self._take(len(marker))
                self._state = self._open
                return True
        self._state = self._open
        return True

    def _open(self) -> bool:
        self._lead += self._take_white_space()
        if not self._buffer and not self._is_final:
            return False
        if self._buffer.startswith("["):
            self._lead += self._take(1)
            self._lead += self._take_white_space()
            self._state = self._in_list
        elif self._buffer.startswith("{"):
            self._state = self._read_call
        else:
            self._give_up(self._lead)
            self._state = self._text
        return True

    def _in_list(self) -> bool:
        self._lead += self._take_white_space()
        if not self._buffer and not self._is_final:
            return False
        if self._buffer.startswith("{"):
            self._state = self._read_call
        else:
            self._give_up(self._lead)
            self._state = self._text
        return True

    def _read_call(self) -> bool:
        self._buffer = self._call.push(self._buffer)
        if self._call.state is CallState.READING and not self._is_final:
            return False
        if self._call.is_started:
            self._state = self._between
            return self._call.state is not CallState.READING and self._note_call_end()
        self._give_up(self._lead + self._call.text)
        self._state = self._text
        return True

    def _between(self) -> bool:
        """After a call: another one behind a separator, the list's or the fence's end, or text."""
        self._lead = self._take_white_space()
        if not self._buffer:
            return False
        if self._buffer[0] in _SEPARATORS or self._buffer[0] == "]":
            self._take(1)
        elif self._buffer[0] == "{":
            self._call = self._new_call()
            self._state = self._read_call
        else:
            found = self._starts_with("```")
            if found is None:
                return False
            if found:
                self._take(3)
            else:
                self._state = self._text
        return True

    def _text(self) -> bool:
        self._content(self._take(len(self._buffer)))
        return False
