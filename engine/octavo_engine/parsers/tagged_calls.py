"""Calls between markers, as Hermes and Qwen write them:

    <tool_call>
    {"name": "weather", "arguments": {"city": "Paris"}}
    </tool_call>

Text around the calls is content. What stands between the markers and is no call of a function that
may be called is content, too.
"""

from collections.abc import Collection

from octavo_engine.parsers.call_scanner import CallScanner, CallState
from octavo_engine.parsers.message import MessageWriter
from octavo_engine.parsers.tool_machine import ToolMachine

START, END = "<tool_call>", "</tool_call>"


class TaggedCalls(ToolMachine):
    def __init__(self, out: MessageWriter, *, only_one: bool, names: Collection[str]) -> None:
        super().__init__(out, only_one=only_one)
        self._names = frozenset(names)
        self._call = self._new_call()
        self._state = self._text

    def _new_call(self) -> CallScanner:
        return CallScanner(self._out, self._names.__contains__)

    def _text(self) -> bool:
        if not self._content_up_to(START):
            return False
        self._take(len(START))
        self._call = self._new_call()
        self._state = self._read_call
        return True

    def _read_call(self) -> bool:
        self._buffer = self._call.push(self._buffer)
        if self._call.state is CallState.READING:
            if self._is_final and not self._call.is_started:
                self._give_up(START + self._call.text)
            return False
        if self._call.is_started:
            self._state = self._call_end
            return self._note_call_end()
        self._give_up(START + self._call.text)
        self._state = self._text
        return True

    def _call_end(self) -> bool:
        """Nothing between the object and the marker means anything."""
        end = self._buffer.find(END)
        if end < 0:
            self._take(max(0, len(self._buffer) - len(END) + 1))
            return False
        self._take(end + len(END))
        self._state = self._text
        return True
