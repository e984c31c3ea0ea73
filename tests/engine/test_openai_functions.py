"""`functions`, `function_call` and messages of that form, as clients before 1.0 know them; and the
choice of some of the tools."""

from typing import Any

import pytest
from tests.engine.byte_tokenizer import make_tokenizer
from tests.engine.chat_messages import (
    TOOL_TEMPLATE,
    TOOLS,
    engine_of,
    joined_message,
    message_of,
    state_of,
)
from tests.engine.echo_engine import EchoEngine
from tests.engine.parser_cases import NAMES, PARIS, Case
from tests.engine.server_client import Client, chat_body, client_of

from octavo_engine.server.settings import ToolParserName
from octavo_engine.structured.grammars import MAX_SCHEMA_DEPTH

FUNCTIONS = [tool["function"] for tool in TOOLS]
BARE_CALL = f'{{"name": "weather", "arguments": {PARIS}}}'
CALL = f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_call>'
PATH = "/v1/chat/completions"


def prompt_of(engine: EchoEngine) -> str:
    return bytes(i for i in engine.requests[-1].prompt_token_ids if i < 256).decode()


def joined_call(chunks: list[dict[str, Any]]) -> dict[str, str]:
    """As openai 0.28's users join it: every field of the call is text that grows."""
    call = {"name": "", "arguments": ""}
    for chunk in chunks:
        for name, text in chunk["choices"][0]["delta"].get("function_call", {}).items():
            call[name] += text
    return call


@pytest.mark.parametrize("step", [1, 4, 100])
async def test_a_call_comes_in_the_form_that_the_request_spoke(step: int) -> None:
    async with client_of(state_of(engine_of(CALL + CALL, step), tool_parser="hermes")) as client:
        (choice,) = (await client.chat(functions=FUNCTIONS))["choices"]
        chunks = await client.stream_chat(functions=FUNCTIONS)
    assert choice["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "function_call": {"name": "weather", "arguments": PARIS},
    }
    assert choice["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "function_call"
    assert joined_call(chunks) == choice["message"]["function_call"]
    assert not any("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks)


async def test_text_is_text_with_functions_too() -> None:
    async with client_of(state_of(engine_of("No."), tool_parser="hermes")) as client:
        (choice,) = (await client.chat(functions=FUNCTIONS))["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("No.", "stop")
    assert "function_call" not in choice["message"]


async def test_the_model_is_told_of_functions_unless_none_may_be_called() -> None:
    engine = engine_of("x")
    async with client_of(state_of(engine)) as client:
        await client.chat(functions=FUNCTIONS)
        assert prompt_of(engine).startswith("[weather][time][noop]user:")
        await client.chat(functions=FUNCTIONS, function_call="none")
        assert prompt_of(engine).startswith("user:")


async def test_a_function_that_is_named_is_guided_and_ends_with_stop() -> None:
    engine = engine_of(CALL)
    fields = {"functions": FUNCTIONS, "function_call": {"name": "weather"}}
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        (choice,) = (await client.chat(**fields))["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["function_call"]["name"] == "weather"
    assert names_in_grammar(engine) == {"weather"}


@pytest.mark.parametrize("template", [TOOL_TEMPLATE, None], ids=["tools", "no tools"])
async def test_earlier_calls_and_results_reach_the_template(template: str | None) -> None:
    engine = engine_of("x")
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "function_call": {"name": "weather", "arguments": PARIS},
        },
        {"role": "function", "name": "weather", "content": "sunny"},
    ]
    tokenizer = make_tokenizer(chat_template=template) if template else make_tokenizer()
    async with client_of(state_of(engine, tokenizer=tokenizer)) as client:
        await client.chat(functions=FUNCTIONS, messages=messages)
    assert "tool:sunny" in prompt_of(engine)
    call = '[{"name": "weather", "arguments": {"city": "Paris"}}]'
    assert f"assistant:{'weather=Paris' if template else call}" in prompt_of(engine)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"functions": FUNCTIONS, "tools": TOOLS}, "cannot go with 'tools'"),
        ({"functions": FUNCTIONS, "tool_choice": "auto"}, "cannot go with 'tools'"),
        ({"functions": FUNCTIONS, "function_call": {"name": "x"}}, "'function_call' names 'x'"),
        ({"function_call": {"name": "x"}}, "'function_call' asks for a call without any function"),
        ({"functions": [FUNCTIONS[0]] * 2}, "'functions' has two functions of one name"),
        ({"functions": [{"name": "a b"}]}, "'functions.0.name'"),
        ({"messages": [{"role": "function", "content": "x"}]}, "needs 'name'"),
        (
            {"functions": FUNCTIONS, "function_call": {"name": "time", "x": 1}},
            "Unrecognized request argument supplied: function_call.x",
        ),
    ],
)
async def test_functions_that_make_no_sense_are_refused(fields: dict[str, Any], words: str) -> None:
    async with client_of(state_of(engine_of("x"))) as client:
        error = await client.refused(PATH, chat_body() | fields)
    assert words in error["message"]


async def test_a_schema_without_bounds_is_refused_where_it_stands() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_SCHEMA_DEPTH):
        deep = {"properties": {"a": deep}}
    bad = {"name": "bad", "parameters": deep}
    named = {"functions": [*FUNCTIONS, bad], "function_call": {"name": "bad"}}
    as_tools = [{"type": "function", "function": each} for each in named["functions"]]
    choice = {"type": "function", "function": {"name": "bad"}}
    async with client_of(state_of(engine_of("x"))) as client:
        old = await client.refused(PATH, chat_body(**named))
        new = await client.refused(PATH, chat_body(tools=as_tools, tool_choice=choice))
    assert old["param"] == "functions.3.parameters"
    assert new["param"] == "tools.3.function.parameters"


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [tool for tool in TOOLS if tool["function"]["name"] in names]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


async def test_the_model_is_told_of_the_allowed_tools_alone() -> None:
    engine = engine_of("x")
    async with client_of(state_of(engine)) as client:
        await client.chat(tools=TOOLS, tool_choice=allowed("auto", "time", "noop"))
    assert prompt_of(engine).startswith("[time][noop]user:")
    assert engine.requests[0].params.grammar is None


@pytest.mark.parametrize("parser", ["hermes", "mistral", "llama3_json", "json"])
@pytest.mark.parametrize("step", [1, 5])
async def test_a_call_of_a_tool_that_is_not_allowed_is_text(
    parser: ToolParserName, step: int
) -> None:
    """As of one that does not exist: no client may take it for a call."""
    text = {"hermes": CALL, "mistral": f"[TOOL_CALLS]weather{PARIS}"}.get(parser, BARE_CALL)
    engine = engine_of(text, step)
    fields = {"tools": TOOLS, "tool_choice": allowed("auto", "time", "noop")}
    async with client_of(state_of(engine, tool_parser=parser)) as client:
        plain = message_of(await client.chat(**fields))
        streamed = joined_message(await client.stream_chat(**fields))
        called, _ = message_of(await client.chat(tools=TOOLS))
    assert plain == streamed == (Case(text="", content=text), "stop")
    assert called.calls == [("weather", PARIS)]


async def test_one_of_the_allowed_tools_may_be_required() -> None:
    engine = engine_of(CALL)
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        await client.chat(tools=TOOLS, tool_choice=allowed("required", "weather", "noop"))
        assert names_in_grammar(engine) == {"weather", "noop"}
        await respond_with_allowed(client)
        assert names_in_grammar(engine) == {"weather"}


async def respond_with_allowed(client: Client) -> None:
    """The same choice in the form of /v1/responses; it is told back as it was asked."""
    tools = [{"type": "function", **function} for function in FUNCTIONS]
    choice = {"type": "allowed_tools", "mode": "required", "tools": tools[:1]}
    body = {"model": "echo", "input": "x", "tools": tools, "tool_choice": choice}
    answer = await client.ok("/v1/responses", body)
    assert answer["tool_choice"] == choice


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        (allowed("sometimes", "time"), "tool_choice.allowed_tools.mode"),
        (allowed("auto"), "tool_choice.allowed_tools.tools"),
        ({"type": "custom"}, "tool_choice"),
        ({"type": "function"}, "tool_choice.function"),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "auto",
                    "tools": [{"type": "function", "function": {"name": "x"}}],
                },
            },
            "tool_choice",
        ),
    ],
)
async def test_a_choice_that_makes_no_sense_is_refused(
    choice: dict[str, Any], param: str | None
) -> None:
    async with client_of(state_of(engine_of("x"))) as client:
        error = await client.refused(PATH, chat_body(tools=TOOLS, tool_choice=choice))
    assert error["param"] == param


def names_in_grammar(engine: EchoEngine) -> set[str]:
    grammar = engine.requests[-1].params.grammar
    assert grammar is not None
    return {name for name in NAMES if name in grammar}
