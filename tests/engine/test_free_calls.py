"""Strict functions that the model may call or not: free text, in which every call has its form."""

import json
import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.byte_tokenizer import EOS_ID, make_tokenizer
from tests.engine.chat_messages import message_of, state_of
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import chat_body, client_of

from octavo_engine.parsers.message import MessageDelta, joined
from octavo_engine.parsers.reader import MessageReader
from octavo_engine.parsers.reasoning import THINK
from octavo_engine.parsers.tool_format import TOOL_FORMATS, ToolRules
from octavo_engine.structured.chat_grammar import Function, after_reasoning
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.structured.free_calls import free_calls_grammar
from octavo_engine.structured.grammars import Grammar
from octavo_engine.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
FUNCTIONS = (Function("f", SCHEMA, "tools.0", is_strict=True), Function("f2", None, "tools.1"))
FORMATS = ("hermes", "mistral", "llama3_json", "json")


@pytest.fixture(scope="module")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(make_tokenizer)


def grammar_of(
    form: str, *, only_one: bool = False, thinks: bool = False, is_open: bool = False
) -> Grammar:
    grammar = free_calls_grammar(
        TOOL_FORMATS[form],
        FUNCTIONS,
        only_one=only_one,
        special_ids={},
        reasoning=THINK if thinks else None,
    )
    if not thinks:
        return grammar
    return after_reasoning(grammar, THINK, is_open=is_open, special_ids={})


def takes(compiler: GrammarCompiler, grammar: Grammar, text: str) -> bool:
    """Whether `text` may be a whole answer."""
    matcher = compiler.matcher(grammar.text())
    try:
        matcher.advance([*text.encode(), EOS_ID])
    except ValueError:
        return False
    return matcher.has_ended


def calls_in(form: str, text: str, *, only_one: bool = False, thinks: bool = False) -> Any:
    rules = ToolRules(tuple(function.name for function in FUNCTIONS), only_one)
    reader = MessageReader(
        tools=TOOL_FORMATS[form],
        rules=rules,
        reasoning=THINK if thinks else None,
        is_reasoning_open=False,
    )
    reader.push(text)
    deltas: list[MessageDelta] = [reader.take()]
    reader.finish()
    return joined([*deltas, reader.take()]).tool_calls


GOOD, OTHER, BAD = '{"a": 1}', '{"b": [2]}', '{"a": "x"}'


def calls_as(form: str, *calls: tuple[str, str]) -> str:
    """In the words of a model of that family."""
    objects = [f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls]
    match form:
        case "hermes":
            return "\n".join(f"<tool_call>\n{each}\n</tool_call>" for each in objects)
        case "mistral":
            return f"[TOOL_CALLS] [{', '.join(objects)}]"
        case "llama3_json":
            return "; ".join(objects).replace("arguments", "parameters")
    return f"[{', '.join(objects)}]"


@pytest.mark.parametrize("form", FORMATS)
def test_a_strict_functions_arguments_follow_its_schema(compiler, form):
    grammar = grammar_of(form)
    assert takes(compiler, grammar, calls_as(form, ("f", GOOD)))
    assert takes(compiler, grammar, calls_as(form, ("f", GOOD), ("f2", OTHER)))
    assert not takes(compiler, grammar, calls_as(form, ("f", BAD)))
    assert not takes(compiler, grammar, calls_as(form, ("f", GOOD), ("f", BAD)))


def test_a_strict_function_without_parameters_takes_none(compiler):
    grammar = free_calls_grammar(
        TOOL_FORMATS["hermes"],
        [Function("f", None, "tools.0", is_strict=True)],
        only_one=False,
        special_ids={},
        reasoning=None,
    )
    assert takes(compiler, grammar, calls_as("hermes", ("f", "{}")))
    assert not takes(compiler, grammar, calls_as("hermes", ("f", GOOD)))


@pytest.mark.parametrize("form", FORMATS)
def test_one_call_at_most_is_the_end(compiler, form):
    grammar = grammar_of(form, only_one=True)
    assert takes(compiler, grammar, calls_as(form, ("f", GOOD)))
    assert not takes(compiler, grammar, calls_as(form, ("f", GOOD), ("f2", OTHER)))


TEXTS = ["", "Hello", "\n {", "[1, 2]", '{"city": "Rome"}', '{"name": "Bob"}', '[{"a": 1}]',
         "```python\nx = {}\n```", "a < b, <tool", "x {}", 'See {"name": "f"}']  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("text", TEXTS)
def test_other_text_is_free(compiler, form, text):
    assert takes(compiler, grammar_of(form), text)
    assert calls_in(form, text) == []


OTHER_WORDS = [
    ("hermes", f'Let me see.\n<tool_call>{{"name": "f", "arguments": {GOOD}}}\n</tool_call> Done.'),
    ("mistral", f"[TOOL_CALLS]f[ARGS]{GOOD}[TOOL_CALLS]f2{OTHER}"),
    ("mistral", f"Well [TOOL_CALLS]f[CALL_ID]a1B2c3D4e[ARGS]{GOOD}"),
    ("llama3_json", f'<|python_tag|>{{"name": "f", "parameters": {GOOD}}}'),
    ("llama3_json", f'{{"type": "function", "name": "f", "parameters": {GOOD}}}'),
    ("json", f'```json\n[{{"name": "f", "arguments": {GOOD}}}]\n```'),
    ("json", f'{{\n    "name": "f",\n    "arguments": {GOOD}\n}}'),
]


@pytest.mark.parametrize(("form", "text"), OTHER_WORDS)
def test_calls_may_be_written_in_all_the_ways_of_a_family(compiler, form, text):
    grammar = grammar_of(form)
    assert takes(compiler, grammar, text)
    assert calls_in(form, text)[0].arguments == GOOD
    assert not takes(compiler, grammar, text.replace(GOOD, BAD))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("is_open", [True, False])
def test_calls_behind_reasoning_are_held_to_their_schema(compiler, form, is_open):
    grammar = grammar_of(form, thinks=True, is_open=is_open)
    thought = 'Is it {"name": or <tool_call>?\n</think>\n\n'
    for reasoning in [thought] if is_open else ["", f"<think>\n{thought}"]:
        assert takes(compiler, grammar, f"{reasoning}Hello")
        assert takes(compiler, grammar, reasoning + calls_as(form, ("f", GOOD)))
        assert not takes(compiler, grammar, reasoning + calls_as(form, ("f", BAD)))


NAME = st.sampled_from(['"name"{}"f"', '"name"{}"f"', '"n\\u0061me"{}"f"', '"name"{}"\\u0066"'])
ARGUMENTS = st.builds(
    '"{}"{{}}{}'.format,
    st.sampled_from(["arguments", "parameters"]),
    st.sampled_from([BAD, BAD, GOOD, '"x"', "5"]).map(
        lambda value: re.sub("([{}])", r"\1\1", value)
    ),
)
OTHERS = st.sampled_from(['"id"{}"x"', '"type"{}"function"', '"x"{}5', '"name"{}"x"'])
OBJECTS = st.builds(
    lambda pairs, space, colon: f"{{{space}{', '.join(pairs).format(*[colon] * len(pairs))}}}",
    st.builds(lambda *pairs: [p for p in pairs if p], NAME, ARGUMENTS, st.none() | OTHERS).flatmap(
        st.permutations
    ),
    st.sampled_from(["", " ", "\n  "]),
    st.sampled_from([":", ": ", " :\t"]),
)
LEADS = st.sampled_from(["", "", "[", "```json\n", "```", "<tool_call>", "<tool_call>\n", "<think>",
    "<think>x</think>\n", "[TOOL_CALLS][", "[TOOL_CALLS]f", "[TOOL_CALLS]f[ARGS]", "[1, ", "text",
    "<|python_tag|>", " \x0b\x1c", "\u00a0\t[ "])  # fmt: skip
TAILS = st.sampled_from(["", "", "]", "\n```", "\n</tool_call>", ", ", "; ", "text"])
PIECES = st.builds("{}{}{}{}".format, LEADS, LEADS, OBJECTS | st.sampled_from([GOOD, BAD]), TAILS)


@settings(max_examples=300, deadline=None)
@given(form=st.sampled_from(FORMATS), pieces=st.lists(PIECES, max_size=3), thinks=st.booleans(),
       only_one=st.booleans())  # fmt: skip
def test_what_the_grammar_takes_holds_no_call_against_its_schema(
    form: str, pieces: list[str], thinks: bool, only_one: bool, compiler: GrammarCompiler
) -> None:
    """However the parser reads the text: what it takes for a call is one by the grammar, too."""
    text = "".join(pieces)
    if not takes(compiler, grammar_of(form, only_one=only_one, thinks=thinks), text):
        return
    for call in calls_in(form, text, only_one=only_one, thinks=thinks):
        if call.name == "f":
            jsonschema.validate(json.loads(call.arguments), SCHEMA)


def test_markers_that_are_special_tokens_are_taken_by_id(compiler):
    hf_tokenizer = make_tokenizer().hf_tokenizer
    hf_tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]", "[ARGS]"]})
    tokenizer = Tokenizer(hf_tokenizer, make_tokenizer().defaults)
    ids = tokenizer.special_ids(["[TOOL_CALLS]", "[ARGS]"])
    begin, args = ids["[TOOL_CALLS]"], ids["[ARGS]"]
    grammar = free_calls_grammar(
        TOOL_FORMATS["mistral"], FUNCTIONS, only_one=False, special_ids=ids, reasoning=None
    )
    compiler = GrammarCompiler(lambda: tokenizer)
    for arguments, is_taken in ((GOOD, True), (BAD, False)):
        matcher = compiler.matcher(grammar.text())
        tokens = [*b"So ", begin, *b"f", args, *arguments.encode(), begin, *b"f2", args, *b"{}"]
        if is_taken:
            matcher.advance([*tokens, EOS_ID])
            assert matcher.has_ended
        else:
            with pytest.raises(ValueError, match="satisfy the grammar"):
                matcher.advance(tokens)


def tool(**fields: Any) -> dict[str, Any]:
    function = {"name": "f", "parameters": SCHEMA, "strict": True, **fields}
    return {"type": "function", "function": function}


async def grammar_asked(**fields: Any) -> str | None:
    engine = EchoEngine(always("x"))
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        await client.chat(**fields)
    return engine.requests[0].params.grammar


async def test_only_strict_functions_that_may_be_called_cost_a_grammar():
    assert "TEXT" in (await grammar_asked(tools=[tool()]) or "")
    assert await grammar_asked(tools=[tool(strict=False)]) is None
    assert await grammar_asked(tools=[tool(strict=None)]) is None
    assert await grammar_asked(tools=[tool()], tool_choice="none") is None
    allowed = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "g"}}]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    tools = [tool(), tool(name="g", strict=False)]
    assert await grammar_asked(tools=tools, tool_choice=choice) is None


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "object", "not": {}}, 'Unimplemented keys: ["not"]'),
        ({"type": "string"}, "has the type 'string'"),
        ({"type": "object", "properties": {"a": {"enum": []}}, "required": ["a"]}, "Unsatisfiable"),
    ],
)
async def test_a_strict_schema_that_cannot_be_followed_is_refused(choice, parameters, words):
    async with client_of(state_of(EchoEngine(always("x")), tool_parser="hermes")) as client:
        tools = [tool(name="g"), tool(parameters=parameters)]
        body = chat_body(tools=tools, tool_choice=choice)
        error = await client.refused("/v1/chat/completions", body)
        assert error["param"] == "tools.1.function.parameters"
        assert words in error["message"]
        items = [{"type": "function", **each["function"]} for each in tools]
        body = {"model": "echo", "input": "hi", "tools": items, "tool_choice": choice}
        error = await client.refused("/v1/responses", body)
        assert error["param"] == "tools.1.parameters"
        assert error["message"].startswith("tools.1.parameters")


async def test_a_call_and_its_text_come_as_without_a_grammar():
    text = "Well.\n" + calls_as("hermes", ("f", GOOD))
    engine = EchoEngine(always(text), max_model_len=1000)
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        message, reason = message_of(await client.chat(tools=[tool()]))
    assert (message.content, message.calls, reason) == ("Well.", [("f", GOOD)], "tool_calls")
