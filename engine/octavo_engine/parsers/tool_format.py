"""How a family of models writes tool calls: what a grammar of them needs, and their parser."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo_engine.parsers.json_calls import PYTHON_TAG, JsonCalls
from octavo_engine.parsers.message import MessageWriter, new_call_id, new_short_call_id
from octavo_engine.parsers.mistral_calls import ARGS, CALL_ID, TOOL_CALLS, MistralCalls
from octavo_engine.parsers.tagged_calls import END, START, TaggedCalls
from octavo_engine.parsers.tool_machine import ToolMachine


@dataclass(frozen=True)
class ToolRules:
    """Which calls one request allows."""

    names: tuple[str, ...]
    """What looks like a call of another function is content."""
    only_one: bool
    """`parallel_tool_calls: false`: the answer ends with the first call."""


@dataclass(frozen=True)
class ToolFormat:
    name: str
    parser: Callable[[MessageWriter, ToolRules], ToolMachine]
    markers: tuple[str, ...]
    """Tokens that may be special in a vocabulary and yet are part of the text."""
    trigger: str = ""
    """What begins a call anywhere in an answer; empty: the whole answer is calls, or none."""
    named_call_marks: tuple[str, str] | None = None
    """Behind the trigger there may also be a name and arguments without an object around them; an
    id follows the first of these marks, the arguments follow the second."""
    arguments_key: str = "arguments"
    opening: str = ""
    """Before the first call, `closing` after the last, `separator` between two."""
    closing: str = ""
    separator: str = ""
    call_opening: str = ""
    call_closing: str = ""
    new_call_id: Callable[[], str] = new_call_id


HERMES = ToolFormat(
    name="hermes",
    parser=lambda out, rules: TaggedCalls(out, only_one=rules.only_one, names=rules.names),
    markers=(START, END),
    trigger=START,
    separator="\n",
    call_opening=f"{START}\n",
    call_closing=f"\n{END}",
)
LLAMA3_JSON = ToolFormat(
    name="llama3_json",
    parser=lambda out, rules: JsonCalls(out, only_one=rules.only_one, names=rules.names),
    markers=(PYTHON_TAG,),
    arguments_key="parameters",
    separator="; ",
)
MISTRAL = ToolFormat(
    name="mistral",
    parser=lambda out, rules: MistralCalls(out, only_one=rules.only_one, names=rules.names),
    markers=(TOOL_CALLS, CALL_ID, ARGS),
    trigger=TOOL_CALLS,
    named_call_marks=(CALL_ID, ARGS),
    opening=f"{TOOL_CALLS}[",
    closing="]",
    separator=", ",
    new_call_id=new_short_call_id,
)
JSON = ToolFormat(
    name="json",
    parser=lambda out, rules: JsonCalls(out, only_one=rules.only_one, names=rules.names),
    markers=(PYTHON_TAG,),
    opening="[",
    closing="]",
    separator=", ",
)
TOOL_FORMATS = {
    "hermes": HERMES,
    "qwen": HERMES,
    "llama3_json": LLAMA3_JSON,
    "mistral": MISTRAL,
    "json": JSON,
}


def guess_tool_format(chat_template: str) -> ToolFormat:
    """By what a template writes of earlier calls; JSON where it knows none of the forms."""
    if TOOL_CALLS in chat_template:
        return MISTRAL
    if START in chat_template:
        return HERMES
    if '"parameters": ' in chat_template or PYTHON_TAG in chat_template:
        return LLAMA3_JSON
    return JSON
