"""An assistant's message as it grows: content, reasoning, tool calls. Plain data."""

import secrets
import string
from collections.abc import Callable, Iterable

import msgspec

_ID_CHARS = string.ascii_letters + string.digits


class ToolCallDelta(msgspec.Struct, frozen=True):
    index: int
    id: str | None = None
    """Given with the call's first delta, as is its name."""
    name: str | None = None
    arguments: str = ""
    """More of the arguments' JSON text, as the model wrote it."""


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What was added to a message; the pieces of each field, joined, are the field."""

    content: str = ""
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = []
    num_calls_before_content: int = 0
    """Of `tool_calls`: they stand before `content` in the text."""

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tool_calls)


class ToolCall(msgspec.Struct, frozen=True):
    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    content: str
    reasoning: str
    tool_calls: list[ToolCall]


def joined(deltas: Iterable[MessageDelta]) -> Message:
    """The message that deltas add up to."""
    deltas = list(deltas)
    calls: dict[int, ToolCall] = {}
    for part in (call for delta in deltas for call in delta.tool_calls):
        known = calls.get(part.index) or ToolCall(part.id or "", part.name or "", "")
        arguments = known.arguments + part.arguments
        calls[part.index] = msgspec.structs.replace(known, arguments=arguments)
    return Message(
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas),
        tool_calls=list(calls.values()),
    )


class MessageWriter:
    """Gathers what parsers find until it is taken as a delta."""

    def __init__(self, new_id: Callable[[], str]) -> None:
        self._new_id = new_id
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, ToolCallDelta] = {}
        self._num_calls_before_content = 0
        self.num_calls = 0
        self.has_open_call = False
        """The arguments of the latest call are not complete."""

    def content(self, text: str) -> None:
        if text and not self._content:
            self._num_calls_before_content = len(self._calls)
        if text:
            self._content.append(text)

    def reasoning(self, text: str) -> None:
        self._reasoning.append(text)

    def start_call(self, name: str) -> None:
        index, self.num_calls = self.num_calls, self.num_calls + 1
        self._calls[index] = ToolCallDelta(index, self._new_id(), name)
        self.has_open_call = True

    def arguments(self, text: str) -> None:
        """More of the latest call's."""
        index = self.num_calls - 1
        known = self._calls.get(index) or ToolCallDelta(index)
        self._calls[index] = msgspec.structs.replace(known, arguments=known.arguments + text)

    def end_arguments(self) -> None:
        self.has_open_call = False

    def take(self) -> MessageDelta:
        """What came since the last call."""
        delta = MessageDelta(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=list(self._calls.values()),
            num_calls_before_content=self._num_calls_before_content,
        )
        self._content, self._reasoning, self._calls = [], [], {}
        self._num_calls_before_content = 0
        return delta


def new_call_id() -> str:
    return "call_" + _random_chars(24)


def new_short_call_id() -> str:
    """Nine letters and digits: the only ids that Mistral's templates accept."""
    return _random_chars(9)


def _random_chars(count: int) -> str:
    return "".join(secrets.choice(_ID_CHARS) for _ in range(count))
