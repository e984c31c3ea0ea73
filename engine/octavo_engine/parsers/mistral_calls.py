"""Calls as Mistral's models write them, older ones as a list, newer ones each behind its marker:

[TOOL_CALLS][{"name": "weather", "arguments": {"city": "Paris"}}, ...]
[TOOL_CALLS]weather[ARGS]{"city": "Paris"}[TOOL_CALLS]...
[TOOL_CALLS]weather{"city": "Paris"}[TOOL_CALLS]...

What stands behind the marker and is no call of a function that may be called is content.
"""

from collections.abc import Collection

from octavo_engine.parsers.call_scanner import CallScanner, CallState, ValueReader
from octavo_engine.parsers.message import MessageWriter
from octavo_engine.parsers.tool_machine import ToolMachine

TOOL_CALLS, CALL_ID, ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_MAX_LEAD_CHARS = 256
"""Of a name and an id, before the arguments."""


class MistralCalls(ToolMachine):
    def __init__(self, out: MessageWriter, *, only_one: bool, names: Collection[str]) -> None:
        super().__init__(out, only_one=only_one)
        self._names = frozenset(names)
        self._call = self._new_call()
        self._reader = ValueReader()
        self._lead = ""
        """Read since the marker; content when no call follows."""
        self._state = self._text

    def _new_call(self) -> CallScanner:
        return CallScanner(self._out, self._names.__contains__)

    def _text(self) -> bool:
        if not self._content_up_to(TOOL_CALLS):
            return False
        self._lead = self._take(len(TOOL_CALLS))
        self._state = self._open
        return True

    def _open(self) -> bool:
        self._lead += self._take_white_space()
        if self._buffer:
            is_list = self._buffer[0] in "[{"
            self._state = self._list_item if is_list else self._name
        elif self._is_final:
            self._give_up(self._lead)
        return bool(self._buffer)

    def _list_item(self) -> bool:
        """In a list: its bracket or a comma, an object, or its end."""
        self._lead += self._take_white_space()
        if not self._buffer:
            if self._is_final and self._out.num_calls == 0:
                self._give_up(self._lead)
                self._lead = ""
            return False
        if self._buffer[0] in "[,":
            self._lead += self._take(1)
        elif self._buffer[0] == "{":
            self._call = self._new_call()
            self._state = self._list_call
        else:
            self._end_list()
        return True

    def _end_list(self) -> None:
        if self._buffer[0] == "]":
            self._lead += self._take(1)
        if self._out.num_calls == 0:
            self._give_up(self._lead)
        self._state = self._text

    def _list_call(self) -> bool:
        self._buffer = self._call.push(self._buffer)
        if self._call.state is CallState.READING and not self._is_final:
            return False
        if self._call.is_started:
            self._lead = ""
            self._state = self._list_item
            return self._call.state is not CallState.READING and self._note_call_end()
        self._give_up(self._lead + self._call.text)
        self._lead = ""
        self._state = self._text
        return True

    def _name(self) -> bool:
        """The name ends where its arguments begin; an id of the model's own is not used."""
        end = self._buffer.find("{", 0, _MAX_LEAD_CHARS)
        if end < 0 and len(self._buffer) < _MAX_LEAD_CHARS and not self._is_final:
            return False
        name = self._buffer[: max(end, 0)].partition(CALL_ID)[0].removesuffix(ARGS).strip()
        if name not in self._names:
            self._give_up(self._lead)
            self._state = self._text
            return True
        self._take(end)
        self._out.start_call(name)
        self._reader = ValueReader()
        self._state = self._arguments
        return True

    def _arguments(self) -> bool:
        end = self._reader.read(self._buffer)
        if end is None:
            self._out.arguments(self._take(len(self._buffer)))
            return False
        self._out.arguments(self._take(end))
        self._out.end_arguments()
        self._state = self._text
        return self._note_call_end()
