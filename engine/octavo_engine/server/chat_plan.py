"""How one chat request's answer is guided and read: tools, reasoning and form put together."""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_engine.errors import RequestError
from octavo_engine.parsers.reader import MessageReader
from octavo_engine.parsers.reasoning import ReasoningFormat
from octavo_engine.parsers.tool_format import JSON, ToolFormat, ToolRules
from octavo_engine.server.chat_formats import ChatFormats
from octavo_engine.server.request_fields import ChatCompletionRequest
from octavo_engine.server.structure import GrammarCheck, answer_grammar
from octavo_engine.structured.chat_grammar import Function, after_reasoning, calls_grammar, either
from octavo_engine.structured.free_calls import free_calls_grammar
from octavo_engine.structured.grammars import Grammar
from octavo_engine.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ChatPlan:
    grammar: str | None
    """What the text has to follow."""
    checks: tuple[GrammarCheck, ...]
    """What of it has to compile, and can be satisfied, by itself: free text or reasoning in front
    would hide that nothing satisfies the rest."""
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
    only_one = fields.parallel_tool_calls is False or fields.names_function
    reasoning = formats.reasoning
    is_open = reasoning is not None and reasoning.is_open(prompt)
    markers = () if reasoning is None else (reasoning.start, reasoning.end)
    special_ids = tokenizer.special_ids((*markers, *(form.markers if form else ())))
    functions = _functions(fields)
    found = _grammar(fields, form, functions, only_one, special_ids, reasoning)
    text = None
    checks = [GrammarCheck(f.arguments.text(), f.param) for f in functions if f.is_strict]
    if found is not None:
        grammar, param = found
        checks.append(GrammarCheck(grammar.text(), param))
        if reasoning is not None:
            grammar = after_reasoning(grammar, reasoning, is_open=is_open, special_ids=special_ids)
        text = grammar.text()
        checks.append(GrammarCheck(text, param))
    names = tuple(tool.function.name for tool in fields.callable_tools)
    return ChatPlan(
        grammar=text,
        checks=tuple(checks),
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
    if formats.tools is None and not fields.must_call:
        param = "functions" if fields.uses_functions else "tools"
        message = f"'{param}' need a tool parser to find calls; this server runs without one"
        raise RequestError(message, param)
    return formats.tools or JSON


def _functions(fields: ChatCompletionRequest) -> list[Function]:
    return [
        Function(
            tool.function.name,
            tool.function.parameters,
            fields.param_of(tool),
            is_strict=tool.function.strict or False,
        )
        for tool in fields.callable_tools
    ]


def _grammar(
    fields: ChatCompletionRequest,
    form: ToolFormat | None,
    functions: Sequence[Function],
    only_one: bool,
    special_ids: dict[str, int],
    reasoning: ReasoningFormat | None,
) -> tuple[Grammar, str] | None:
    """With the field that asks for it. None: the text is free."""
    answer = answer_grammar(fields)
    if form is None:
        return answer
    tools = "functions" if fields.uses_functions else "tools"
    if answer is None and not fields.must_call:
        if not any(function.is_strict for function in functions):
            return None
        free = free_calls_grammar(
            form, functions, only_one=only_one, special_ids=special_ids, reasoning=reasoning
        )
        return free, tools
    calls = calls_grammar(form, functions, only_one=only_one, special_ids=special_ids)
    if answer is None or fields.must_call:
        return calls, tools
    return either(calls, answer[0]), answer[1]
