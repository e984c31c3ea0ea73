"""The grammar of a whole chat answer: reasoning first, then tool calls or an answer in a form.

Pure: knows how formats mark things, nothing of requests and models.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo_engine.errors import RequestError
from octavo_engine.parsers.reasoning import ReasoningFormat
from octavo_engine.parsers.tool_format import ToolFormat
from octavo_engine.structured.grammars import Grammar, json_grammar, lark_text

MAX_CALLS = 16
"""In one answer that has to be calls."""


@dataclass(frozen=True)
class Function:
    name: str
    parameters: dict[str, Any] | None
    """JSON schema; None: any object, of a strict function the empty one."""
    param: str
    """The field of the request that holds it, for complaints."""
    is_strict: bool = False
    """A schema that cannot be followed in all is refused, not followed as far as it can be."""

    @property
    def arguments(self) -> Grammar:
        """Raises `RequestError` for what is no schema of an object."""
        unknown = {"additionalProperties": not self.is_strict}
        schema = {"type": "object"} | (unknown if self.parameters is None else self.parameters)
        if schema["type"] != "object":
            message = f"{self.param} has the type {schema['type']!r:.80}, arguments are an 'object'"
            raise RequestError(message, self.param)
        return json_grammar(schema, self.param, lenient=not self.is_strict)


def calls_grammar(
    form: ToolFormat,
    functions: Sequence[Function],
    *,
    only_one: bool,
    special_ids: Mapping[str, int],
) -> Grammar:
    """Of one or several calls. special_ids: the markers that are special tokens."""
    repeat = "" if only_one else f" (separator call){{0,{MAX_CALLS - 1}}}"
    lark = [
        f"start: {literals(form.opening, special_ids)} call{repeat} "
        f"{literals(form.closing, special_ids)}",
        f"separator: {literals(form.separator, special_ids)}" if not only_one else "",
        *call_rules(form, functions, form.call_opening, special_ids),
    ]
    return Grammar({"lark_grammar": "\n".join(lark)}, argument_parts(functions))


def argument_parts(functions: Sequence[Function]) -> dict[str, Grammar]:
    """What `call_rules` refers to."""
    return {f"arguments_{idx}": function.arguments for idx, function in enumerate(functions)}


def call_rules(
    form: ToolFormat, functions: Sequence[Function], opening: str, special_ids: Mapping[str, int]
) -> list[str]:
    """Of one call, `call`, as the object that names its function, behind `opening`."""
    rules = ["call: " + " | ".join(f"call_{idx}" for idx in range(len(functions)))]
    after = "}" + form.call_closing
    for idx, function in enumerate(functions):
        before = f'{opening}{{"name": {json.dumps(function.name)}, "{form.arguments_key}": '
        rules.append(
            f"call_{idx}: {literals(before, special_ids)} @arguments_{idx} "
            f"{literals(after, special_ids)}"
        )
    return rules


def either(first: Grammar, second: Grammar) -> Grammar:
    return _joined("start: @first | @second", first=first, second=second)


def after_reasoning(
    grammar: Grammar, form: ReasoningFormat, *, is_open: bool, special_ids: Mapping[str, int]
) -> Grammar:
    """The same behind reasoning of any text: the one that the prompt has opened, or one that the
    model opens itself or leaves out."""
    end = literals(form.end, special_ids)
    if form.end in special_ids:
        rules = f"thought: text {end}\ntext: /(.|\\n)*/"
    else:
        rules = f"thought[suffix={end}]: /(.|\\n)*/"
    start = literals(form.start, special_ids)
    opened = "thought" if is_open else f"({start} thought)?"
    return _joined(f"start: {opened} /\\n{{0,2}}/ @answer\n{rules}", answer=grammar)


def _joined(lark: str, **grammars: Grammar) -> Grammar:
    """All named parts of one whole; each of the functions here gives its parts other names."""
    parts = {name: Grammar(grammar.body) for name, grammar in grammars.items()}
    for grammar in grammars.values():
        assert not parts.keys() & grammar.parts.keys(), f"{list(parts)}, {list(grammar.parts)}"
        parts |= grammar.parts
    return Grammar({"lark_grammar": lark}, parts)


def literals(text: str, special_ids: Mapping[str, int]) -> str:
    """A text as literals, its special tokens by id: as text they could not be written."""
    pieces = [text]
    if special_ids:
        pieces = re.split(f"({'|'.join(map(re.escape, special_ids))})", text)
    return " ".join(
        f"<[{special_ids[piece]}]>" if piece in special_ids else lark_text(piece)
        for piece in pieces
        if piece
    )
