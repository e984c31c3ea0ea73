"""Builds the items of a Responses answer from deltas, and says what happened as events.

The stream sends the events, the plain answer drops them: both end with the same items. Knows no
HTTP.
"""

import uuid
from typing import Any

import msgspec

from octavo_engine.parsers.message import MessageDelta, ToolCallDelta
from octavo_engine.server.response_types import ContentLogprob
from octavo_engine.server.responses_types import (
    FunctionCallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

Event = dict[str, Any]
"""Without its sequence number."""


class ItemBuilder:
    """One message, one reasoning and any number of calls, in the order in which they begin."""

    def __init__(self) -> None:
        self.items: list[OutputItem] = []
        self._reasoning: ReasoningItem | None = None
        self._message: MessageItem | None = None
        self._call: FunctionCallItem | None = None
        """The one that grows."""

    def add(self, delta: MessageDelta, logprobs: list[ContentLogprob]) -> list[Event]:
        first, rest = _split(delta)
        events = self._add_reasoning(delta.reasoning)
        for call in first:
            events += self._add_call(call)
        events += self._add_content(delta.content, logprobs)
        for call in rest:
            events += self._add_call(call)
        return events

    def finish(self, status: ItemStatus, call_status: ItemStatus) -> list[Event]:
        """Closes what is open; an answer without anything is an empty message."""
        events = [] if self.items else self._open_message()
        events += self._close_reasoning(status)
        if self._message is not None:
            events += self._close_message(self._message, status)
        return events + self._close_call(call_status)

    def _add_reasoning(self, text: str) -> list[Event]:
        events: list[Event] = []
        if not text:
            return events
        if self._reasoning is None:
            self._reasoning = ReasoningItem(id=_new_id("rs"), content=[ReasoningText()])
            events += self._open(self._reasoning, self._reasoning.content[0])
        self._reasoning.content[0].text += text
        delta = {"content_index": 0, "delta": text}
        return [*events, self._event("response.reasoning_text.delta", self._reasoning, **delta)]

    def _add_content(self, text: str, logprobs: list[ContentLogprob]) -> list[Event]:
        if not text and not (logprobs and self._message is not None):
            return []
        events = self._close_reasoning("completed")
        if self._message is None:
            events += self._open_message()
        assert self._message is not None
        part = self._message.content[0]
        part.text += text
        part.logprobs += logprobs
        delta = {"content_index": 0, "delta": text, "logprobs": logprobs}
        return [*events, self._event("response.output_text.delta", self._message, **delta)]

    def _add_call(self, part: ToolCallDelta) -> list[Event]:
        events = self._close_reasoning("completed")
        if part.name is not None:
            events += self._close_call("completed")
            self._call = FunctionCallItem(id=_new_id("fc"), call_id=part.id or "", name=part.name)
            events += self._open(self._call, None)
        assert self._call is not None
        if part.arguments:
            self._call.arguments += part.arguments
            name = "response.function_call_arguments.delta"
            events.append(self._event(name, self._call, delta=part.arguments))
        return events

    def _open_message(self) -> list[Event]:
        self._message = MessageItem(id=_new_id("msg"), content=[OutputText()])
        return self._open(self._message, self._message.content[0])

    def _open(self, item: OutputItem, part: OutputText | ReasoningText | None) -> list[Event]:
        self.items.append(item)
        index = len(self.items) - 1
        # The events show the item as it is at this moment: empty.
        shown = msgspec.to_builtins(item) | ({} if part is None else {"content": []})
        added: Event = {
            "type": "response.output_item.added",
            "output_index": index,
            "item": shown,
        }
        if part is None:
            return [added]
        new_part = self._event(
            "response.content_part.added", item, content_index=0, part=msgspec.to_builtins(part)
        )
        return [added, new_part]

    def _close_reasoning(self, status: ItemStatus) -> list[Event]:
        item = self._reasoning
        if item is None or item.status != "in_progress":
            return []
        item.status = status
        text = {"content_index": 0, "text": item.content[0].text}
        return [
            self._event("response.reasoning_text.done", item, **text),
            *self._part_and_item_done(item, item.content[0]),
        ]

    def _close_message(self, item: MessageItem, status: ItemStatus) -> list[Event]:
        item.status = status
        part = item.content[0]
        text = {"content_index": 0, "text": part.text, "logprobs": part.logprobs}
        return [
            self._event("response.output_text.done", item, **text),
            *self._part_and_item_done(item, part),
        ]

    def _close_call(self, status: ItemStatus) -> list[Event]:
        item, self._call = self._call, None
        if item is None:
            return []
        item.status = status
        name = "response.function_call_arguments.done"
        done = self._event(name, item, arguments=item.arguments, name=item.name)
        return [done, self._item_done(item)]

    def _part_and_item_done(
        self, item: OutputItem, part: OutputText | ReasoningText
    ) -> list[Event]:
        done = self._event("response.content_part.done", item, content_index=0, part=part)
        return [done, self._item_done(item)]

    def _item_done(self, item: OutputItem) -> Event:
        index = self.items.index(item)
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def _event(self, kind: str, item: OutputItem, **fields: Any) -> Event:
        index = self.items.index(item)
        return {"type": kind, "item_id": item.id, "output_index": index, **fields}


def _split(delta: MessageDelta) -> tuple[list[ToolCallDelta], list[ToolCallDelta]]:
    """The calls before and after the content."""
    count = delta.num_calls_before_content if delta.content else len(delta.tool_calls)
    return delta.tool_calls[:count], delta.tool_calls[count:]


def _new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
