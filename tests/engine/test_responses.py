"""/v1/responses over an engine with scripted tokens: items in, items out, events as they come."""

from typing import Any

import pytest
from openai.types.responses import Response
from tests.engine.chat_messages import engine_of, state_of
from tests.engine.echo_engine import EchoEngine
from tests.engine.joined import joined_items
from tests.engine.parser_cases import NAMES, PARIS
from tests.engine.server_client import client_of

RESPONSES = "/v1/responses"
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": None}
    for name in NAMES
]


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "echo", "input": "hi", **fields}


async def test_an_answer_has_openais_form():
    async with client_of(state_of(engine_of("Hello."))) as client:
        answer = await client.ok(RESPONSES, body_of(instructions="Be brief."))
    assert answer["object"] == "response"
    assert answer["id"].startswith("resp-")
    assert answer["status"] == "completed"
    (item,) = answer["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    text = {"type": "output_text", "text": "Hello.", "annotations": [], "logprobs": []}
    assert item["content"] == [text]
    usage = answer["usage"]
    assert usage["output_tokens"] == 6
    assert usage["total_tokens"] == usage["input_tokens"] + 6
    assert answer["instructions"] == "Be brief."
    assert answer["store"] is False


@pytest.mark.parametrize("step", [1, 4, 100])
async def test_items_stand_in_the_order_in_which_they_begin(step):
    call = f'<tool_call>{{"name": "time", "arguments": {PARIS}}}</tool_call>'
    engine = engine_of(f"{call} text {call}", step)
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        events = await client.stream_response(body_of(tools=TOOLS))
    assert [item["type"] for item in joined_items(events)] == [
        "function_call",
        "message",
        "function_call",
    ]


async def test_items_become_the_messages_of_a_chat():
    engine = engine_of("x")
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        {"type": "reasoning", "id": "rs", "summary": [], "content": []},
        {"type": "message", "role": "assistant", "content": [
            {"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": PARIS},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"role": "developer", "content": "Go on."},
    ]  # fmt: skip
    async with client_of(state_of(engine)) as client:
        await client.ok(RESPONSES, body_of(input=items, instructions="Be brief.", tools=TOOLS[:1]))
    ids = engine.requests[0].prompt_token_ids
    prompt = bytes(token_id for token_id in ids if token_id < 256).decode()
    assert prompt == (
        "[weather]system:Be brief.user:Weather?assistant:I look.weather=Paris"
        "tool:sunnysystem:Go on.assistant:"
    )


@pytest.mark.parametrize("by_alias", [True, False])
async def test_items_may_be_sent_back_as_openais_client_dumps_them(by_alias):
    call = f'<tool_call>{{"name": "time", "arguments": {PARIS}}}</tool_call> Now.'
    async with client_of(state_of(engine_of(call), tool_parser="hermes")) as client:
        answer = Response.model_validate(await client.ok(RESPONSES, body_of(tools=TOOLS)))
        items = [item.model_dump(by_alias=by_alias) for item in answer.output]
        tools = [tool.model_dump(by_alias=by_alias) for tool in answer.tools]
        await client.ok(RESPONSES, body_of(input=items, tools=tools))
    assert [item["type"] for item in items] == ["function_call", "message"]


async def test_max_output_tokens_leaves_an_answer_incomplete():
    async with client_of(state_of(engine_of("Hello."))) as client:
        answer = await client.ok(RESPONSES, body_of(max_output_tokens=3))
        events = await client.stream_response(body_of(max_output_tokens=3))
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"] == "Hel"
    assert events[-1]["type"] == "response.incomplete"


async def test_logprobs_come_when_they_are_included():
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with client_of(state_of(engine_of("Hi"))) as client:
        answer = await client.ok(RESPONSES, body_of(**fields))
        events = await client.stream_response(body_of(**fields))
    logprobs = answer["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in logprobs] == ["H", "i"]
    assert len(logprobs[0]["top_logprobs"]) == 2
    deltas = [e["logprobs"] for e in events if e["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta] == logprobs


async def test_a_form_is_passed_on_as_a_grammar():
    engine = engine_of("{}")
    form = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    async with client_of(state_of(engine)) as client:
        answer = await client.ok(RESPONSES, body_of(text={"format": form}))
    assert engine.requests[0].params.grammar is not None
    assert answer["text"]["format"]["schema"] == {"type": "object"}


async def test_a_failure_in_a_stream_is_its_last_event():
    engine: EchoEngine = engine_of("Hello.")
    engine.failure = "the engine could not"
    async with client_of(state_of(engine)) as client:
        events = await client.stream_response(body_of())
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"store": True}, "store"),
        ({"colour": "red"}, "colour"),
        ({"input": []}, "input"),
        ({"input": [{"type": "computer_call"}]}, "input.0"),
        ({"input": [[{"type": "message"}]]}, "input.0"),
        ({"input": [3]}, "input.0"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": {"$ref": "#/no"}}}},
         "text.format.schema"),
        ({"tools": TOOLS[:1], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content.0"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}",
                     "async": True}]}, "input.0.async"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x",
                     "caller": {"type": "program", "caller_id": "p"}}]}, "input.0.caller"),
        ({"tools": [{**TOOLS[0], "defer_loading": True}]}, "tools.0.defer_loading"),
    ],
)  # fmt: skip
async def test_wrong_requests_name_the_field(fields, param):
    async with client_of(state_of(engine_of("x"))) as client:
        error = await client.refused(RESPONSES, body_of(**fields))
    assert error["param"] == param


async def test_a_complaint_speaks_of_this_endpoints_fields():
    """Although the request goes the way of a chat."""
    async with client_of(state_of(engine_of("x"))) as client:
        long = await client.refused(RESPONSES, body_of(max_output_tokens=10**6))
        effort = await client.refused(RESPONSES, body_of(reasoning={"effort": "low"}))
    assert "'max_output_tokens' asks for 1000000 more" in long["message"]
    assert "'reasoning.effort' 'low' is not supported" in effort["message"]
