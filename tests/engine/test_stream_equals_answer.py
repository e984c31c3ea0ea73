"""The joined stream is the plain answer, field by field, however the engine's tokens come in steps:
for every endpoint, with n, logprobs, stop strings, reasoning, tools, functions and forms."""

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.byte_tokenizer import ids_of
from tests.engine.chat_messages import TOOLS, engine_of, message_of, state_of
from tests.engine.echo_engine import EchoEngine
from tests.engine.joined import joined_chat, joined_completion, joined_items, without_ids
from tests.engine.parser_cases import HERMES_CASES, JSON_CASES, MISTRAL_CASES, PARIS, Case
from tests.engine.server_client import client_of, serving

TEXTS = st.text(alphabet="ab é🎉中", max_size=12)
STOPS = st.lists(st.text(alphabet="ab é🎉", min_size=1, max_size=3), max_size=3)
STEPS = st.lists(st.integers(1, 9), min_size=1, max_size=5)
REASONING = st.sampled_from(["", "<think>\nI see.\n</think>\n\n"])
CALLS = [
    *[("hermes", case) for case in HERMES_CASES],
    *[("json", case) for case in JSON_CASES],
    *[("llama3_json", case) for case in JSON_CASES],
    *[("mistral", case) for case in MISTRAL_CASES],
]
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
USAGE = {"stream_options": {"include_usage": True}}
ITEM_TOOLS = [{"type": "function", "strict": None, **tool["function"]} for tool in TOOLS]

many = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


def two_texts(first: str, second: str, steps: list[int]) -> EchoEngine:
    return EchoEngine(
        lambda request, index: ids_of(second if index else first), tokens_per_step=steps
    )


@st.composite
def cuts(draw: st.DrawFn) -> dict[str, Any]:
    """Fields that end an answer early."""
    return {
        "n": 2,
        "stop": draw(STOPS),
        "max_tokens": draw(st.integers(1, 20)),
        "include_stop_str_in_output": draw(st.booleans()),
    }


@many
@given(TEXTS, TEXTS, STEPS, cuts(), st.booleans())
async def test_completions(
    text: str, other: str, steps: list[int], fields: dict[str, Any], echo: bool
) -> None:
    fields |= {"prompt": ["hé", "you"], "logprobs": 1, "echo": echo}
    fields["max_tokens"] = max(fields["max_tokens"] - 1, 0)
    async with serving(two_texts(text, other, steps)) as client:
        plain = await client.complete(**fields)
        *chunks, last = await client.stream_complete(**fields, **USAGE)
    assert joined_completion(chunks) == plain["choices"]
    assert last["usage"] == plain["usage"]


@many
@given(TEXTS, TEXTS, STEPS, cuts())
async def test_chats_of_text(
    text: str, other: str, steps: list[int], fields: dict[str, Any]
) -> None:
    fields |= {"logprobs": True, "top_logprobs": 1}
    async with serving(two_texts(text, other, steps)) as client:
        plain = await client.chat(**fields)
        *chunks, last = await client.stream_chat(**fields, **USAGE)
    assert joined_chat(chunks) == plain["choices"]
    assert last["usage"] == plain["usage"]


@many
@given(st.sampled_from(CALLS), STEPS, REASONING)
async def test_chats_with_tools_and_reasoning(
    case: tuple[Any, Case], steps: list[int], reasoning: str
) -> None:
    parser, expected = case
    engine = engine_of(reasoning + expected.text, steps)
    state = state_of(engine, tool_parser=parser, reasoning_parser="think")
    async with client_of(state) as client:
        plain = await client.chat(tools=TOOLS, logprobs=True)
        chunks = await client.stream_chat(tools=TOOLS, logprobs=True)
    thought = "I see." if reasoning else ""
    expected = Case(text="", content=expected.content, calls=expected.calls, reasoning=thought)
    finish_reason = "tool_calls" if expected.calls and not case[1].is_cut else "stop"
    assert message_of(plain) == (expected, finish_reason)
    assert without_ids(joined_chat(chunks)) == without_ids(plain["choices"])


@many
@given(st.sampled_from(HERMES_CASES), STEPS, REASONING)
async def test_chats_with_functions(case: Case, steps: list[int], reasoning: str) -> None:
    engine = engine_of(reasoning + case.text, steps)
    state = state_of(engine, tool_parser="hermes", reasoning_parser="think")
    functions = {"functions": [tool["function"] for tool in TOOLS]}
    async with client_of(state) as client:
        plain = await client.chat(**functions)
        chunks = await client.stream_chat(**functions)
    call = plain["choices"][0]["message"].get("function_call")
    assert (call and (call["name"], call["arguments"])) == (case.calls[0] if case.calls else None)
    assert joined_chat(chunks) == plain["choices"]


@many
@given(st.sampled_from(HERMES_CASES), STEPS, REASONING)
async def test_responses(case: Case, steps: list[int], reasoning: str) -> None:
    engine = engine_of(reasoning + case.text, steps)
    state = state_of(engine, tool_parser="hermes", reasoning_parser="think")
    body = {"model": "echo", "input": "hi", "tools": ITEM_TOOLS}
    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    async with client_of(state) as client:
        plain = await client.ok("/v1/responses", body)
        events = await client.stream_response(body)
    items = joined_items(events)
    assert without_ids(items) == without_ids(plain["output"])
    last = events[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == items
    assert last["response"]["usage"] == plain["usage"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == case.calls
    statuses = ["completed"] * len(calls)
    assert [call["status"] for call in calls] == (
        [*statuses[1:], "incomplete"] if case.is_cut else statuses
    )


JSON_TEXTS = st.dictionaries(TEXTS, TEXTS, max_size=2).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)


@many
@given(JSON_TEXTS, STEPS, STOPS, st.sampled_from(["form", "required call", "responses"]))
async def test_answers_in_a_form(text: str, steps: list[int], stops: list[str], kind: str) -> None:
    """The form is enforced by the engine (test_structured_http.py); here it says what may come."""
    call = f'<tool_call>{{"name": "time", "arguments": {text}}}</tool_call>'
    engine = engine_of(call if kind == "required call" else text, steps)
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        if kind == "responses":
            form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
            body = {"model": "echo", "input": "hi", "text": {"format": form}}
            answer = await client.ok("/v1/responses", body)
            items = joined_items(await client.stream_response(body))
            assert without_ids(items) == without_ids(answer["output"])
            return
        fields: dict[str, Any] = {"n": 2, "stop": stops, "logprobs": True}
        if kind == "form":
            fields |= {"response_format": FORM}
        else:
            fields |= {"tools": TOOLS, "tool_choice": "required"}
        answer = await client.chat(**fields)
        chunks = await client.stream_chat(**fields)
    assert without_ids(joined_chat(chunks)) == without_ids(answer["choices"])
    assert all(request.params.grammar for request in engine.requests)
    if kind == "required call" and not stops:
        (called,) = answer["choices"][0]["message"]["tool_calls"]
        assert called["function"] == {"name": "time", "arguments": text}


async def test_a_stream_in_single_tokens_has_parts_of_a_call() -> None:
    """What the properties above would not see: arguments that come all at once, at the end."""
    call = f'<tool_call>{{"name": "weather", "arguments": {PARIS}}}</tool_call>'
    async with client_of(state_of(engine_of(call), tool_parser="hermes")) as client:
        chunks = await client.stream_chat(tools=TOOLS)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert sum("tool_calls" in delta for delta in deltas) > 5
