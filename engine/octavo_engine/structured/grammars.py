"""Grammars in the form that llguidance compiles, from JSON schemas, regular expressions, choices.

Pure text work; whether a grammar is one at all shows when it is compiled (`compiler.py`).
"""

import json
from collections.abc import Sequence
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


def json_grammar(schema: Any, param: str) -> str:
    """Of the JSON texts that a schema allows; `{}` allows any.

    Raises `RequestError` for what is no schema, too long or nested too deeply.
    """
    if isinstance(schema, str):
        schema = _parsed(schema, param)
    if not isinstance(schema, dict | bool):
        raise RequestError(f"{param} is {schema!r:.80}, not a JSON schema", param)
    refuse_deep_schema(schema, param)
    text = json.dumps(schema)
    _refuse_long(text, param)
    if schema is True:
        text = "{}"
    return LLMatcher.grammar_from_json_schema(
        text if schema is not False else '{"enum": []}',
        overrides={"whitespace_pattern": WHITE_SPACE},
    )


def json_object_grammar() -> str:
    return json_grammar({"type": "object"}, "response_format")


def regex_grammar(pattern: str, param: str) -> str:
    """Of the texts that a regular expression matches as a whole."""
    _refuse_long(pattern, param)
    return LLMatcher.grammar_from_regex(pattern)


def choice_grammar(choices: Sequence[str], param: str) -> str:
    """Of these texts and no other."""
    if len(choices) > MAX_CHOICES:
        raise RequestError(f"{param} has {len(choices)} choices, more than {MAX_CHOICES}", param)
    if not choices or not all(choices):
        raise RequestError(f"{param} needs at least one choice and no empty one", param)
    lark = "start: " + " | ".join(map(lark_text, dict.fromkeys(choices)))
    _refuse_long(lark, param)
    return LLMatcher.grammar_from_lark(lark)


def lark_grammar(grammar: str, param: str) -> str:
    """Of a grammar in Lark's form, or in the EBNF of GBNF (`root ::= ...`)."""
    _refuse_long(grammar, param)
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(grammar))
    except Exception as error:  # its own exception and whatever a broken grammar makes it raise
        raise RequestError(f"{param} is not a grammar: {error}"[:500], param) from error


def lark_text(text: str) -> str:
    """A literal of a Lark grammar. JSON's escapes are Lark's."""
    return json.dumps(text)


def refuse_deep_schema(schema: Any, param: str) -> None:
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
