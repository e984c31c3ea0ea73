"""Grammars in the form that llguidance compiles, from JSON schemas, regular expressions, choices.

Pure text work; whether a grammar is one at all shows when it is compiled (`compiler.py`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from llguidance import LLMatcher
from llguidance.gbnf_to_lark import any_to_lark

from octavo_engine.errors import RequestError

MAX_GRAMMAR_CHARS = 256 * 1024
MAX_SCHEMA_DEPTH = 32
"""Objects and arrays inside each other in a JSON schema, counted as the client wrote it."""
MAX_CHOICES = 2000

WHITE_SPACE = r"( |\n {0,32})?"
"""Between the parts of a JSON text: nothing, a space, or a new line with its indent. Unlimited
white space is what models without a plan write until their tokens are used up."""


@dataclass(frozen=True)
class Grammar:
    """A grammar and the named ones that it refers to with `@name`."""

    body: dict[str, Any]
    """`{"json_schema": ...}` or `{"lark_grammar": ...}`."""
    parts: "Mapping[str, Grammar]" = field(default_factory=dict)
    """They have no parts of their own."""

    def text(self) -> str:
        """What `SamplingParams.grammar` holds."""
        named = [{"name": name, **part.body} for name, part in self.parts.items()]
        return json.dumps({"grammars": [self.body, *named]})


def json_grammar(schema: Any, param: str, *, lenient: bool = False) -> Grammar:
    """Of the JSON texts that a schema allows. lenient: without the keywords that cannot be followed
    token by token, else they are refused when it is compiled.

    Raises `RequestError` for what is no schema, too long or nested too deeply.
    """
    if isinstance(schema, str):
        schema = _parsed(schema, param)
    if not isinstance(schema, dict):
        raise RequestError(f"{param} is {schema!r:.80}, not a JSON schema object", param)
    _refuse_deep(schema, param)
    _refuse_long(json.dumps(schema), param)
    options = {"whitespace_pattern": WHITE_SPACE, "lenient": lenient}
    return Grammar({"json_schema": {**schema, "x-guidance": options}})


def regex_grammar(pattern: str, param: str) -> Grammar:
    """Of the texts that a regular expression matches as a whole."""
    _refuse_long(pattern, param)
    (body,) = json.loads(LLMatcher.grammar_from_regex(pattern))["grammars"]
    return Grammar({"lark_grammar": body["lark_grammar"]})


def choice_grammar(choices: Sequence[str], param: str) -> Grammar:
    """Of these texts and no other."""
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"{param} has {len(choices)} choices, more than {MAX_CHOICES}", param)
    if not choices or not all(choices):
        raise RequestError(f"{param} needs at least one choice and no empty one", param)
    lark = "start: " + " | ".join(map(lark_text, dict.fromkeys(choices)))
    _refuse_long(lark, param)
    return Grammar({"lark_grammar": lark})


def lark_grammar(grammar: str, param: str) -> Grammar:
    """Of a grammar in Lark's form, or in the EBNF of GBNF (`root ::= ...`)."""
    _refuse_long(grammar, param)
    try:
        return Grammar({"lark_grammar": any_to_lark(grammar)})
    except Exception as error:  # its own exception and whatever a broken grammar makes it raise
        raise RequestError(f"{param} is not a grammar: {error}"[:500], param) from error


def lark_text(text: str) -> str:
    """A literal of a Lark grammar. JSON's escapes are Lark's."""
    return json.dumps(text)


def _refuse_deep(schema: Any, param: str) -> None:
    """Goes level by level, so that depth costs no stack."""
    level = [schema]
    for _ in range(MAX_SCHEMA_DEPTH + 1):
        nested = [item for item in level if isinstance(item, dict | list)]
        if not nested:
            return
        level = [
            child
            for item in nested
            for child in (item.values() if isinstance(item, dict) else item)
        ]
    raise RequestError(f"{param} is nested deeper than {MAX_SCHEMA_DEPTH} levels", param)


def _parsed(text: str, param: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{param} is not JSON: {error}", param) from error


def _refuse_long(text: str, param: str) -> None:
    if len(text) > MAX_GRAMMAR_CHARS:
        raise RequestError(
            f"{param} has {len(text)} characters, more than {MAX_GRAMMAR_CHARS}", param
        )
