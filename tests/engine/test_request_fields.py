"""The reference page of request fields, and that the lists on it tell the truth."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from openai.types import chat, completion_create_params, responses
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params, response_input_param
from openai.types.shared.reasoning_effort import ReasoningEffort
from openai.types.shared_params import (
    FunctionDefinition,
    reasoning,
    response_format_json_schema,
)
from pydantic import BaseModel
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import client_of, make_state

from octavo_engine.server.fields_page import fields_page
from octavo_engine.server.message_fields import ChatMessage, RefusalPart, TextPart
from octavo_engine.server.neutral_fields import NeutralFields
from octavo_engine.server.request_fields import (
    ChatCompletionRequest,
    CompletionRequest,
    Effort,
    GenerationFields,
    StreamOptions,
)
from octavo_engine.server.responses_fields import (
    AllowedChoice,
    FunctionCallInput,
    FunctionOutputInput,
    FunctionToolFields,
    MessageInput,
    ReasoningFields,
    ReasoningInput,
    RefusalItemPart,
    ResponsesRequest,
    SchemaFormat,
    TextFields,
    TextItemPart,
)
from octavo_engine.server.structure_fields import JsonSchemaFormat
from octavo_engine.server.tool_fields import FunctionSpec, Tool

PAGE = Path(__file__).parents[2] / "engine" / "REQUEST_FIELDS.md"
CASES = [
    (
        ChatCompletionRequest,
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "x"}]},
    ),
    (CompletionRequest, "/v1/completions", {"prompt": "x"}),
    (ResponsesRequest, "/v1/responses", {"input": "x"}),
]


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text() == fields_page(), "run 'make request-fields'"


@pytest.mark.parametrize(("kind", "path", "body"), CASES)
async def test_every_unsupported_field_is_refused_by_name_and_neutral_values_are_taken(
    kind: type[GenerationFields], path: str, body: dict[str, object]
) -> None:
    async with client_of(make_state(EchoEngine(always("x")))) as client:
        for name, values in kind.neutral_values.items():
            error = await client.refused(path, {"model": "echo", **body, name: {"x": 1}})
            assert error["param"] == name
            assert error["code"] == "unsupported_parameter"
            for value in (None, *values):
                await client.ok(path, {"model": "echo", **body, name: value})
        error = await client.refused(path, {"model": "echo", **body, "colour": "red"})
        assert (error["param"], error["code"]) == ("colour", "unknown_parameter")


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (ChatCompletionRequest, chat_create_params.CompletionCreateParamsBase),
        (CompletionRequest, completion_create_params.CompletionCreateParamsBase),
        (ResponsesRequest, response_create_params.ResponseCreateParamsBase),
    ],
)
def test_every_field_that_openais_client_can_send_is_known(
    kind: type[GenerationFields], params: type
) -> None:
    known = {*kind.model_fields, *kind.neutral_values}
    assert set(params.__annotations__) - known == set()


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        *[(ChatMessage, getattr(chat, f"ChatCompletion{role}MessageParam"))
          for role in ("System", "Developer", "User", "Assistant", "Tool", "Function")],
        (TextPart, chat.ChatCompletionContentPartTextParam),
        (RefusalPart, chat.ChatCompletionContentPartRefusalParam),
        (Tool, chat.ChatCompletionFunctionToolParam),
        (FunctionSpec, FunctionDefinition),
        (JsonSchemaFormat, response_format_json_schema.JSONSchema),
        (StreamOptions, chat.ChatCompletionStreamOptionsParam),
        (MessageInput, responses.EasyInputMessageParam),
        (MessageInput, responses.ResponseOutputMessageParam),
        (TextItemPart, responses.ResponseInputTextParam),
        (TextItemPart, responses.ResponseOutputTextParam),
        (RefusalItemPart, responses.ResponseOutputRefusalParam),
        (FunctionCallInput, responses.ResponseFunctionToolCallParam),
        (FunctionOutputInput, response_input_param.FunctionCallOutput),
        (ReasoningInput, responses.ResponseReasoningItemParam),
        (FunctionToolFields, responses.FunctionToolParam),
        (AllowedChoice, responses.ToolChoiceAllowedParam),
        (TextFields, responses.ResponseTextConfigParam),
        (SchemaFormat, responses.ResponseFormatTextJSONSchemaConfigParam),
    ],
)  # fmt: skip
def test_every_field_of_what_lies_in_a_request_is_known(
    kind: type[BaseModel], params: type
) -> None:
    known = {field.alias or name for name, field in kind.model_fields.items()}
    if issubclass(kind, NeutralFields):
        known |= set(kind.neutral_values)
    assert set(get_type_hints(params)) - known == set()


def test_every_effort_and_kind_of_reasoning_that_openais_client_can_ask_for_is_known() -> None:
    efforts = {value for each in get_args(ReasoningEffort) for value in get_args(each)}
    assert efforts - {*get_args(Effort), None} == set()
    assert set(reasoning.Reasoning.__annotations__) - set(ReasoningFields.model_fields) == set()
