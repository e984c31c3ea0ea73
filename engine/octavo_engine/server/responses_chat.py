"""A Responses request as the chat that it is: items become messages, options get chat's names."""

from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from octavo_engine.errors import RequestError
from octavo_engine.server.parse import explain
from octavo_engine.server.prepare import Prepared, prepare_chat
from octavo_engine.server.request_fields import ChatCompletionRequest
from octavo_engine.server.responses_fields import (
    AllowedChoice,
    FunctionCallInput,
    FunctionChoice,
    FunctionOutputInput,
    FunctionToolFields,
    InputItem,
    MessageInput,
    ReasoningInput,
    ResponsesRequest,
    SchemaFormat,
)
from octavo_engine.server.state import Loaded

_OWN_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "response_format.json_schema.schema": "text.format.schema",
    "reasoning_effort": "reasoning.effort",
}


def prepare_response(
    fields: ResponsesRequest, loaded: Loaded, request_id: str, arrival_time_s: float
) -> Prepared:
    """Raises `RequestError` naming this endpoint's field."""
    try:
        prepared = prepare_chat(as_chat(fields), loaded, request_id, arrival_time_s)
    except RequestError as error:
        raise _in_own_names(error) from error
    checks = [replace(check, param=_own_name(check.param)) for check in prepared.grammars]
    return replace(prepared, grammars=tuple(checks))


def _in_own_names(error: RequestError) -> RequestError:
    """The same complaint about the field that this endpoint's client has sent."""
    param, message = error.param or "", str(error)
    own = _own_name(param)
    if "." in param:  # no word of a sentence
        return type(error)(message.replace(param, own), own)
    return type(error)(message.replace(f"'{param}'", f"'{own}'"), own or None)


def _own_name(param: str) -> str:
    if param.startswith("tools."):
        return param.replace(".function.", ".")  # here a tool is its function
    return _OWN_NAMES.get(param) or _OWN_NAMES.get(param.partition(".")[0], param)


def as_chat(fields: ResponsesRequest) -> ChatCompletionRequest:
    same = ("model", "temperature", "top_p", "top_k", "min_p", "seed", "priority", "cache_salt")
    chat: dict[str, Any] = {name: getattr(fields, name) for name in same}
    chat |= {
        "messages": messages_of(fields),
        "max_completion_tokens": fields.max_output_tokens,
        "logprobs": fields.wants_logprobs,
        "top_logprobs": fields.top_logprobs,
        "tools": _tools(fields),
        "tool_choice": _tool_choice(fields),
        "parallel_tool_calls": fields.parallel_tool_calls,
        "response_format": _response_format(fields),
        "reasoning_effort": None if fields.reasoning is None else fields.reasoning.effort,
        "chat_template_kwargs": fields.chat_template_kwargs,
    }
    try:
        return ChatCompletionRequest.model_validate(chat)
    except ValidationError as error:
        complaint = explain(error)
        raise _in_own_names(RequestError(str(complaint), complaint.param)) from error


def messages_of(fields: ResponsesRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if fields.instructions is not None:
        messages.append({"role": "system", "content": fields.instructions})
    if isinstance(fields.input, str):
        return [*messages, {"role": "user", "content": fields.input}]
    for item in fields.input:
        _add_item(messages, item)
    return [_with_content(message) for message in messages]


def _add_item(messages: list[dict[str, Any]], item: InputItem) -> None:
    """What one assistant's turn consists of goes into one message."""
    match item:
        case MessageInput(role="assistant"):
            turn = _assistant_turn(messages, is_new="content")
            turn["content"] = _text(item.content)
        case MessageInput():
            messages.append({"role": item.role, "content": _text(item.content)})
        case FunctionCallInput():
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            _assistant_turn(messages).setdefault("tool_calls", []).append(call)
        case FunctionOutputInput():
            output = {"content": _text(item.output), "name": item.name}
            messages.append({"role": "tool", "tool_call_id": item.call_id, **output})
        case ReasoningInput():
            text = "".join(part.get("text", "") for part in item.content or item.summary)
            _assistant_turn(messages, is_new="reasoning_content")["reasoning_content"] = text


def _assistant_turn(messages: list[dict[str, Any]], is_new: str = "") -> dict[str, Any]:
    """The turn that is being put together; another one when it has that part already."""
    last = messages[-1] if messages else {}
    if last.get("role") != "assistant" or is_new in last or (is_new and "tool_calls" in last):
        messages.append({"role": "assistant"})
    return messages[-1]


def _with_content(message: dict[str, Any]) -> dict[str, Any]:
    return message if "tool_calls" in message else {"content": "", **message}


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "\n".join(part.text for part in content)


def _tools(fields: ResponsesRequest) -> list[dict[str, Any]] | None:
    return None if fields.tools is None else [_tool(tool) for tool in fields.tools]


def _tool(tool: FunctionToolFields) -> dict[str, Any]:
    return {
        "type": "function",
        "function": tool.model_dump(exclude={"type"}, exclude_none=True),
    }


def _tool_choice(fields: ResponsesRequest) -> Any:
    match fields.tool_choice:
        case FunctionChoice(name=name):
            return {"type": "function", "function": {"name": name}}
        case AllowedChoice(mode=mode, tools=tools):
            allowed = {"mode": mode, "tools": [_tool(tool) for tool in tools]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
        case choice:
            return choice


def _response_format(fields: ResponsesRequest) -> dict[str, Any] | None:
    form = None if fields.text is None else fields.text.format
    if form is None:
        return None
    if isinstance(form, SchemaFormat):
        return {"type": "json_schema", "json_schema": {"name": form.name, "schema": form.schema_}}
    return {"type": form.type}
