"""How one chat request's answer is guided and read: tools, reasoning and form put together."""

from dataclasses import dataclass

from octavo_engine.errors import RequestError
from octavo_engine.parsers.reader import MessageReader
from octavo_engine.parsers.reasoning import ReasoningFormat
from octavo_engine.parsers.tool_format import JSON, ToolFormat, ToolRules
from octavo_engine.server.chat_formats import ChatFormats
from octavo_engine.server.request_fields import ChatCompletionRequest
from octavo_engine.server.structure import answer_grammar
from octavo_engine.server.tool_fields import NamedToolChoice, Tool
from octavo_engine.structured.chat_grammar import Function, after_reasoning, calls_grammar, either
from octavo_engine.structured.grammars import Grammar
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatPlan:
    grammar: str | None
    """What the text has to follow."""
    form: str | None
    """The same without reasoning in front, which would hide that nothing satisfies it."""
    grammar_param: str
    """The field that asks for it."""
    tools: ToolFormat | None
    rules: ToolRules | None
    reasoning: ReasoningFormat | None
    is_reasoning_open: bool
    kept_ids: frozenset[int]
    """Special tokens that the reader needs to see."""

    def new_reader(self) -> MessageReader:
        return MessageReader(
            tools=self.tools,
            rules=self.rules,
            reasoning=self.reasoning,
            is_reasoning_open=self.is_reasoning_open,
        )


def plan_chat(
    fields: ChatCompletionRequest, formats: ChatFormats, tokenizer: Tokenizer, prompt: str
) -> ChatPlan:
    """prompt: as rendered. Raises `RequestError` naming the field."""
    form = tool_format(fields, formats)
    tools = callable_tools(fields)
    only_one = fields.parallel_tool_calls is False or isinstance(
        fields.tool_choice, NamedToolChoice
    )
    reasoning = formats.reasoning
    is_open = reasoning is not None and reasoning.is_open(prompt)
    markers = () if reasoning is None else (reasoning.start, reasoning.end)
    special_ids = tokenizer.special_ids((*markers, *(form.markers if form else ())))
    found = _grammar(fields, form, tools, only_one, special_ids)
    text, bare, param = None, None, ""
    if found is not None:
        grammar, param = found
        bare = grammar.text()
        if reasoning is not None:
            grammar = after_reasoning(grammar, reasoning, is_open=is_open, special_ids=special_ids)
        text = grammar.text()
    names = tuple(tool.function.name for tool in tools)
    return ChatPlan(
        grammar=text,
        form=bare,
        grammar_param=param,
        tools=form,
        rules=ToolRules(names, only_one) if form else None,
        reasoning=reasoning,
        is_reasoning_open=is_open,
        kept_ids=frozenset(special_ids.values()),
    )


def tool_format(fields: ChatCompletionRequest, formats: ChatFormats) -> ToolFormat | None:
    """None when the answer cannot hold calls."""
    if not fields.offered_tools:
        return None
    if formats.tools is None and fields.tool_choice in (None, "auto"):
        message = "'tools' need a tool parser to find calls; this server runs without one"
        raise RequestError(message, "tools")
    return formats.tools or JSON


def callable_tools(fields: ChatCompletionRequest) -> list[Tool]:
    choice = fields.tool_choice
    if isinstance(choice, NamedToolChoice):
        return [tool for tool in fields.offered_tools if tool.function.name == choice.function.name]
    return fields.offered_tools


def must_call(fields: ChatCompletionRequest) -> bool:
    return fields.tool_choice == "required" or isinstance(fields.tool_choice, NamedToolChoice)


def _grammar(
    fields: ChatCompletionRequest,
    form: ToolFormat | None,
    tools: list[Tool],
    only_one: bool,
    special_ids: dict[str, int],
) -> tuple[Grammar, str] | None:
    answer = answer_grammar(fields)
    if form is None or not (answer or must_call(fields)):
        return answer
    functions = [Function(tool.function.name, tool.function.parameters) for tool in tools]
    calls = calls_grammar(form, functions, only_one=only_one, special_ids=special_ids)
    if answer is None or must_call(fields):
        return calls, "tools"
    return either(calls, answer[0]), answer[1]
