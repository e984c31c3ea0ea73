"""Tools and reasoning over HTTP: what the prompt says and the answer holds, whole and streamed."""

import json
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
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.parser_cases import (
    HERMES_CASES,
    NAMES,
    REASONING_CASES,
)
from tests.engine.server_client import Client, client_of

from octavo_engine.text.tokenizer import Tokenizer


@pytest.mark.parametrize("case", REASONING_CASES)
async def test_reasoning_is_a_field_of_its_own(case):
    async with client_of(state_of(engine_of(case.text), reasoning_parser="think")) as client:
        whole, _ = message_of(await client.chat())
        chunks = await client.stream_chat()
    assert (whole.content, whole.reasoning) == (case.content, case.reasoning)
    assert joined_message(chunks)[0] == whole


async def test_reasoning_stays_in_the_content_without_a_parser():
    state = state_of(engine_of("<think>a</think>b"), reasoning_parser="none")
    async with client_of(state) as client:
        assert (message_of(await client.chat()))[0].content == "<think>a</think>b"


@pytest.mark.parametrize(
    ("tail", "text", "reasoning", "content"),
    [
        ("<think>\n", "a</think>b", "a", "b"),
        ("<think>\n\n</think>\n\n", "b", "", "b"),
        ("", "b", "", "b"),
    ],
)
async def test_the_rendered_prompt_says_whether_reasoning_is_open(tail, text, reasoning, content):
    template = TOOL_TEMPLATE.replace("assistant:", "assistant:" + tail) + "{# <think></think> #}"
    tokenizer = make_tokenizer(chat_template=template)
    async with client_of(state_of(engine_of(text), tokenizer=tokenizer)) as client:
        message, _ = message_of(await client.chat("<think>"))
    assert (message.reasoning, message.content) == (reasoning, content)


async def prompt_of(client: Client, engine: EchoEngine, **fields: Any) -> str:
    await client.chat(**fields)
    ids = engine.requests[-1].prompt_token_ids
    return bytes(token_id for token_id in ids if token_id < 256).decode()


async def test_the_template_gets_the_tools_and_earlier_calls():
    engine = engine_of("x")
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Paris"}'},
    }
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    async with client_of(state_of(engine)) as client:
        prompt = await prompt_of(client, engine, tools=TOOLS[:2], messages=messages)
        assert prompt.startswith("[weather][time]user:hi")
        assert "assistant:weather=Paris" in prompt
        assert "tool:sunny" in prompt
        assert "[weather]" not in await prompt_of(client, engine, tools=TOOLS, tool_choice="none")


async def test_a_template_without_tools_gets_a_system_message_of_them():
    engine = engine_of("x")
    tokenizer = make_tokenizer()
    call = {"id": "1", "type": "function", "function": {"name": "time", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    async with client_of(state_of(engine, tokenizer=tokenizer)) as client:
        prompt = await prompt_of(client, engine, tools=TOOLS, messages=messages)
        assert "system:Be brief.\n\nYou can call these functions:" in prompt
        assert '{"name": "weather", "parameters": {"type": "object"}}' in prompt
        assert 'assistant:[{"name": "time", "arguments": {}}]' in prompt
        assert "system:You can" in await prompt_of(client, engine, tools=TOOLS)


DEEP = "[" * 50_000 + "]" * 50_000


@pytest.mark.parametrize("arguments", ['{"city": "Pa', "", "5", DEEP], ids=str.__len__)
@pytest.mark.parametrize("template", [TOOL_TEMPLATE, None], ids=["tools", "no tools"])
async def test_earlier_calls_are_taken_with_whatever_arguments_the_model_wrote(arguments, template):
    """Clients send them back as they were, also those that were cut off."""
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "not understood"},
    ]
    engine = EchoEngine(always("x"), max_model_len=400_000)
    tokenizer = make_tokenizer(chat_template=template) if template else make_tokenizer()
    async with client_of(state_of(engine, tokenizer=tokenizer)) as client:
        prompt = await prompt_of(client, engine, messages=messages, tools=TOOLS)
    assert "tool:not understood" in prompt
    if not template:
        shown = {"": "{}", "5": "5"}.get(arguments) or json.dumps(arguments)
        assert f'assistant:[{{"name": "f", "arguments": {shown}}}]' in prompt


async def test_one_call_at_most_ends_the_answer_and_the_sequence():
    text = f"{HERMES_CASES[2].text}\n{HERMES_CASES[2].text}"
    engine = engine_of(text, 7)
    fields = {"tools": TOOLS, "parallel_tool_calls": False}
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        answer = await client.chat(**fields)
        chunks = await client.stream_chat(**fields)
    message, finish_reason = message_of(answer)
    assert message.calls == HERMES_CASES[2].calls
    assert finish_reason == "tool_calls"
    assert len(engine.finished) == 2
    call_end = HERMES_CASES[2].text.index("}}") + 2
    assert answer["usage"]["completion_tokens"] == call_end
    assert joined_message(chunks) == (message, finish_reason)


@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_a_call_that_a_stop_string_cuts_is_not_told_as_one_to_make(choice):
    engine = engine_of(HERMES_CASES[2].text, 3)
    fields = {"tools": TOOLS, "tool_choice": choice, "stop": ["Paris"]}
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        answer = await client.chat(**fields)
        chunks = await client.stream_chat(**fields)
    message, finish_reason = message_of(answer)
    assert (message.calls, finish_reason) == ([("weather", '{"city": "')], "stop")
    assert answer["choices"][0]["stop_reason"] == "Paris"
    assert joined_message(chunks) == (message, finish_reason)


async def test_a_stop_string_behind_a_call_leaves_the_call_whole():
    engine = engine_of(HERMES_CASES[2].text + "\nStop here.", 3)
    fields = {"tools": TOOLS, "stop": ["Stop"]}
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        message, finish_reason = message_of(await client.chat(**fields))
        chunks = await client.stream_chat(**fields)
    assert (message.calls, finish_reason) == (HERMES_CASES[2].calls, "tool_calls")
    assert joined_message(chunks) == (message, finish_reason)


async def test_a_special_token_that_marks_calls_is_seen_and_never_shown():
    tokenizer = make_tokenizer(chat_template=TOOL_TEMPLATE)
    tokenizer.hf_tokenizer.add_special_tokens({"additional_special_tokens": ["[TOOL_CALLS]"]})
    tokenizer = Tokenizer(tokenizer.hf_tokenizer, tokenizer.defaults)
    marker = tokenizer.special_ids(["[TOOL_CALLS]"])["[TOOL_CALLS]"]

    def script(request: Any, index: int) -> list[int]:
        return [marker, *b'time{"a": 1}']

    engine = EchoEngine(script)
    state = state_of(engine, tool_parser="mistral", tokenizer=tokenizer)
    async with client_of(state) as client:
        assert message_of(await client.chat(tools=TOOLS))[0].calls == [("time", '{"a": 1}')]
        assert message_of(await client.chat())[0].content == 'time{"a": 1}'


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}])
@pytest.mark.parametrize("parser", ["hermes", "json", "none"])
async def test_a_call_that_is_required_is_guided_by_a_grammar(choice, parser):
    engine = engine_of("[]")
    async with client_of(state_of(engine, tool_parser=parser)) as client:
        await client.chat(tools=TOOLS, tool_choice=choice)
    grammar = engine.requests[0].params.grammar
    assert grammar is not None
    names = {
        name for name in NAMES if f'\\"{name}\\' in json.dumps(grammar)[1:-1] or name in grammar
    }
    assert names == (set(NAMES) if choice == "required" else {"time"})


async def test_a_named_call_ends_with_stop_as_openais_does():
    named = {"type": "function", "function": {"name": "noop"}}
    engine = engine_of('<tool_call>{"name": "noop"}</tool_call>')
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        assert message_of(await client.chat(tools=TOOLS, tool_choice=named))[1] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": TOOLS[:1], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "retrieval"}]}, "tools.0.type"),
        ({"tools": [TOOLS[0]] * 200}, "tools"),
    ],
)
async def test_tools_that_make_no_sense_are_refused(fields, param):
    async with client_of(state_of(engine_of("x"))) as client:
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], **fields}
        error = await client.refused("/v1/chat/completions", body)
    assert error["param"] == param


async def test_tools_without_a_parser_are_refused():
    async with client_of(state_of(engine_of("x"), tool_parser="none")) as client:
        body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
        error = await client.refused("/v1/chat/completions", body)
    assert error["param"] == "tools"
