"""The grammar of an answer that may call functions: any text, in which what begins a call is one.

So the arguments of a call that nobody has asked for follow their schema, too. What begins a call is
what the format's parser takes for one. Pure: knows how formats mark things, nothing of requests.
"""

import re
from collections.abc import Mapping, Sequence

from octavo_engine.parsers.reasoning import ReasoningFormat
from octavo_engine.parsers.tool_format import ToolFormat
from octavo_engine.structured.chat_grammar import (
    MAX_CALLS,
    Function,
    argument_parts,
    call_rules,
    literals,
)
from octavo_engine.structured.grammars import WHITE_SPACE, Grammar

_SPACE = r"[\s\x1c-\x1f]*"
"""As the parsers skip it."""
_ESCAPED = r'"[^"\\]*\\'
"""A string that has come to an escape."""
_FENCES = ("```json", "```")


def free_calls_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    *,
    only_one: bool,
    special_ids: Mapping[str, int],
    reasoning: ReasoningFormat | None,
) -> Grammar:
    """special_ids: the markers that are special tokens, which no text holds. reasoning: what may
    stand before the answer, and is then no part of it."""
    text = r"TEXT: /(.|\n)*/"
    if reasoning is not None and reasoning.start not in special_ids:
        text += rf" & ~/{_SPACE}{re.escape(reasoning.start)}(.|\n)*/"
    if form.trigger:
        rules = _behind_trigger(form, functions, only_one, special_ids)
    else:
        text += rf" & ~/{_beginning_of_call(form, functions)}(.|\n)*/"
        rules = _whole_answer(form, functions, only_one, special_ids)
    return Grammar({"lark_grammar": "\n".join([*rules, text])}, argument_parts(functions))


def _behind_trigger(
    form: ToolFormat, functions: Sequence[Function], only_one: bool, special_ids: Mapping[str, int]
) -> list[str]:
    """Calls anywhere in the text, each or each list of them behind the format's marker."""
    trigger = literals(form.trigger, special_ids)
    is_list = bool(form.opening) and not only_one
    more = f" (separator call){{0,{MAX_CALLS - 1}}}" if is_list else ""
    opening, call_opening = (
        text.removeprefix(form.trigger).lstrip() for text in (form.opening, form.call_opening)
    )
    calls = f"{literals(opening, special_ids)} call{more} {literals(form.closing, special_ids)}"
    if form.named_call_marks is not None:
        calls += " | named"
    return [
        "start: text | begin calls" if only_one else "start: (begin calls)* text",
        "text: TEXT",
        f"begin: TEXT {trigger}" if form.trigger in special_ids else f"begin[lazy]: TEXT {trigger}",
        f"calls: /[ \\n]?/ ({calls})",
        f"separator: {literals(form.separator, special_ids)}" if is_list else "",
        *call_rules(form, functions, call_opening, special_ids),
        *_named_rules(form, functions, special_ids),
    ]


def _named_rules(
    form: ToolFormat, functions: Sequence[Function], special_ids: Mapping[str, int]
) -> list[str]:
    """A function's name and its arguments, without the object around them."""
    if form.named_call_marks is None:
        return []
    call_id, arguments = (literals(mark, special_ids) for mark in form.named_call_marks)
    return [
        "named: " + " | ".join(f"named_{idx}" for idx in range(len(functions))),
        *(
            f"named_{idx}: {literals(function.name, {})} ({call_id} /[a-zA-Z0-9]{{9}}/)? "
            f"({arguments})? @arguments_{idx}"
            for idx, function in enumerate(functions)
        ),
    ]


def _beginning_of_call(form: ToolFormat, functions: Sequence[Function]) -> str:
    """A pattern of what may still become a call where the whole answer has to be calls. What an
    escape stands for is not looked at."""
    marks = "|".join(re.escape(mark) for mark in (*form.markers, *_FENCES))
    names = "|".join(re.escape(function.name) for function in functions)
    lead = rf"{_SPACE}({marks})?{_SPACE}\[?{_SPACE}\{{{_SPACE}"
    name = rf'"name"{_SPACE}:{_SPACE}("({names})"|{_ESCAPED})'
    return rf'{lead}("(id|type|arguments|parameters)"|{name}|{_ESCAPED})'


def _whole_answer(
    form: ToolFormat, functions: Sequence[Function], only_one: bool, special_ids: Mapping[str, int]
) -> list[str]:
    """Calls as the only thing in the answer, alone or in a list. A call is one terminal up to its
    arguments: the text ends to be one in the middle of it."""
    texts = [re.escape(mark) for mark in form.markers if mark not in special_ids]
    tokens = [literals(mark, special_ids) for mark in form.markers if mark in special_ids]
    lead = rf"/[ \n]{{0,4}}({'|'.join([*texts, *_FENCES])})?[ \n]{{0,4}}(\[{WHITE_SPACE})?/"
    more = "" if only_one else f" next{{0,{MAX_CALLS - 1}}}"
    rules = [
        f"start: TEXT | {''.join(f'({token})? ' for token in tokens)}first{more} TAIL",
        "first: " + " | ".join(f"FIRST_{i} @arguments_{i} CLOSE" for i in range(len(functions))),
        "next: " + " | ".join(f"NEXT_{i} @arguments_{i} CLOSE" for i in range(len(functions))),
        rf"CLOSE: /{WHITE_SPACE}\}}/",
        rf"TAIL: /{WHITE_SPACE}\]?{WHITE_SPACE}(```)?/",
    ]
    for idx, function in enumerate(functions):
        rules += [
            f"FIRST_{idx}: {lead} CALL_{idx}",
            rf"NEXT_{idx}: /{WHITE_SPACE}[,;]?{WHITE_SPACE}/ CALL_{idx}",
            f"CALL_{idx}: /{_call_up_to_arguments(function.name)}/",
        ]
    return rules


def _call_up_to_arguments(name: str) -> str:
    parts = (r"\{", r'("type" ?: ?"function",)?', f'"name" ?: ?"{re.escape(name)}" ?,')
    return WHITE_SPACE.join((*parts, r'"(arguments|parameters)" ?:', ""))
