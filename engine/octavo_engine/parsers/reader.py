"""Reads one sequence's text as an assistant's message: reasoning split off, tool calls found."""

from octavo_engine.parsers.message import MessageDelta, MessageWriter, new_call_id
from octavo_engine.parsers.reasoning import ReasoningFormat, ReasoningSplitter
from octavo_engine.parsers.text_machine import TextMachine
from octavo_engine.parsers.tool_format import ToolFormat, ToolRules
from octavo_engine.parsers.tool_machine import PlainText, ToolMachine


class MessageReader:
    def __init__(
        self,
        *,
        tools: ToolFormat | None = None,
        rules: ToolRules | None = None,
        reasoning: ReasoningFormat | None = None,
        is_reasoning_open: bool = False,
    ) -> None:
        """tools and rules: how calls are written and which may come; None: all text is content.
        reasoning: how reasoning is marked; None: it is content like the rest."""
        self._out = MessageWriter(tools.new_call_id if tools is not None else new_call_id)
        self._answer: TextMachine = PlainText(self._out)
        if tools is not None and rules is not None:
            self._answer = tools.parser(self._out, rules)
        self._machine: TextMachine = self._answer
        if reasoning is not None:
            self._machine = ReasoningSplitter(
                reasoning, self._out, self._answer, is_open=is_reasoning_open
            )

    @property
    def is_over(self) -> bool:
        """The only call that may come is complete."""
        return isinstance(self._answer, ToolMachine) and self._answer.is_over

    @property
    def has_calls(self) -> bool:
        """There are calls, and each is complete."""
        return self._out.num_calls > 0 and not self._out.has_open_call

    @property
    def has_open_call(self) -> bool:
        return self._out.has_open_call

    @property
    def is_reasoning(self) -> bool:
        return isinstance(self._machine, ReasoningSplitter) and self._machine.is_reasoning

    def push(self, text: str) -> None:
        self._machine.push(text)

    def finish(self) -> None:
        self._machine.finish()

    def take(self) -> MessageDelta:
        """What came since the last call."""
        return self._out.take()
