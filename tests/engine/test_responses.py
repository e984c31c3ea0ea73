"""/v1/responses over an engine with scripted tokens: items in, items out, events as they come."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.chat_messages import engine_of, state_of
from tests.engine.echo_engine import EchoEngine
from tests.engine.parser_cases import HERMES_CASES, NAMES, PARIS
from tests.engine.server_client import Client, client_of

RESPONSES = "/v1/responses"
TOOLS = [
    {"type": "function", "name": name, "parameters": {"type": "object"}, "strict": None}
    for name in NAMES
]


def body_of(**fields: Any) -> dict[str, Any]:
    return {"model": "echo", "input": "hi", **fields}


async def events_of(client: Client, **fields: Any) -> list[dict[str, Any]]:
    response = await client.http.post(RESPONSES, json=body_of(stream=True, **fields))
    assert response.status_code == 200, response.text
    events = []
    for block in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def bare(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the ids, which differ from answer to answer."""
    return [
        {name: value for name, value in item.items() if name not in ("id", "call_id")}
        for item in items
    ]


def joined_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client puts them together from nothing but the deltas."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "response.content_part.added":
                items[event["output_index"]]["content"].append(event["part"])
            case "response.output_text.delta" | "response.reasoning_text.delta":
                items[event["output_index"]]["content"][0]["text"] += event["delta"]
            case "response.function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "response.output_item.done":
                done = event["item"]
                assert {**items[event["output_index"]], "status": done["status"]} == done
                items[event["output_index"]]["status"] = done["status"]
    return items


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


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    case=st.sampled_from(HERMES_CASES),
    step=st.integers(1, 9),
    reasoning=st.sampled_from(["", "<think>\nI see.\n</think>\n\n"]),
)
async def test_the_joined_stream_is_the_whole_answer(case, step, reasoning):
    engine = engine_of(reasoning + case.text, step)
    state = state_of(engine, tool_parser="hermes", reasoning_parser="think")
    async with client_of(state) as client:
        answer = await client.ok(RESPONSES, body_of(tools=TOOLS))
        events = await events_of(client, tools=TOOLS)
    items = joined_items(events)
    assert bare(items) == bare(answer["output"])
    last = events[-1]
    assert last["type"] == "response.completed"
    assert last["response"]["output"] == items
    assert last["response"]["usage"] == answer["usage"]
    calls = [item for item in items if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == case.calls


@pytest.mark.parametrize("step", [1, 4, 100])
async def test_items_stand_in_the_order_in_which_they_begin(step):
    call = f'<tool_call>{{"name": "time", "arguments": {PARIS}}}</tool_call>'
    engine = engine_of(f"{call} text {call}", step)
    async with client_of(state_of(engine, tool_parser="hermes")) as client:
        events = await events_of(client, tools=TOOLS)
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


async def test_max_output_tokens_leaves_an_answer_incomplete():
    async with client_of(state_of(engine_of("Hello."))) as client:
        answer = await client.ok(RESPONSES, body_of(max_output_tokens=3))
        events = await events_of(client, max_output_tokens=3)
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["output"][0]["content"][0]["text"] == "Hel"
    assert events[-1]["type"] == "response.incomplete"


async def test_logprobs_come_when_they_are_included():
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    async with client_of(state_of(engine_of("Hi"))) as client:
        answer = await client.ok(RESPONSES, body_of(**fields))
        events = await events_of(client, **fields)
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
        events = await events_of(client)
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
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"),
        ({"text": {"format": {"type": "json_schema", "schema": {"$ref": "#/no"}}}},
         "text.format.schema"),
        ({"tools": TOOLS[:1], "tool_choice": {"type": "function", "name": "x"}}, None),
    ],
)  # fmt: skip
async def test_wrong_requests_name_the_field(fields, param):
    async with client_of(state_of(engine_of("x"))) as client:
        error = await client.refused(RESPONSES, body_of(**fields))
    assert error["param"] == param
