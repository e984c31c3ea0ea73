"""Conversations in the form that chat templates expect. Knows no HTTP and renders nothing."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from octavo_engine.errors import RequestError


def template_messages(
    messages: Sequence[Mapping[str, Any]], *, knows_developer: bool
) -> list[dict[str, Any]]:
    """Messages as templates read them: text content, tool arguments as objects.

    `knows_developer`: whether the template has the role `developer`; else it becomes `system`,
    which is what OpenAI's newer name means. Raises `RequestError` naming the message at fault.
    """
    return [
        _template_message(message, idx, knows_developer)
        for idx, message in enumerate(_with_tool_calls(messages))
    ]


def messages_with_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """For templates that know no tools: the system message tells of them, and earlier calls and
    their results are text."""
    plain = [_without_calls(message) for message in messages]
    if not tools:
        return plain
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    text = (
        "You can call these functions:\n"
        f"{listed}\n"
        "To call some, answer with nothing but a JSON list of the calls: "
        '[{"name": <function>, "arguments": <object>}, ...]'
    )
    if plain[0]["role"] == "system":
        first = {**plain[0], "content": f"{plain[0]['content']}\n\n{text}"}
        return [first, *plain[1:]]
    return [{"role": "system", "content": text}, *plain]


def _with_tool_calls(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Calls and results of OpenAI's older form (`function_call`, role `function`) as tools', the
    only ones that templates know. A result belongs to the call before it."""
    renamed: list[Mapping[str, Any]] = []
    call_id = ""
    for idx, message in enumerate(messages):
        if (function := message.get("function_call")) is not None:
            call_id = f"{idx:09}"  # nine letters or digits: all that Mistral's templates accept
            call = {"id": call_id, "type": "function", "function": function}
            renamed.append({**message, "function_call": None, "tool_calls": [call]})
        elif message["role"] == "function":
            renamed.append({**message, "role": "tool", "tool_call_id": call_id or f"{idx:09}"})
        else:
            renamed.append(message)
    return renamed


def _without_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    functions = [call["function"] for call in calls]
    listed = json.dumps(
        [{"name": f["name"], "arguments": f["arguments"]} for f in functions], ensure_ascii=False
    )
    rest = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**rest, "content": f"{message['content']}{listed}"}


def _template_message(
    message: Mapping[str, Any], idx: int, knows_developer: bool
) -> dict[str, Any]:
    result = {name: value for name, value in message.items() if value is not None}
    if result["role"] == "developer" and not knows_developer:
        result["role"] = "system"
    result["content"] = _text(message.get("content"))
    if "tool_calls" in result:
        result["tool_calls"] = [
            _tool_call(call, f"messages.{idx}.tool_calls.{call_idx}")
            for call_idx, call in enumerate(result["tool_calls"])
        ]
    return result


def _text(content: str | Sequence[Mapping[str, str]] | None) -> str:
    """Parts are texts, or refusals that an assistant has given before."""
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text" if part["type"] == "text" else "refusal"] for part in content)


def _tool_call(call: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Arguments travel as JSON text; templates print an object in their own way. What is no JSON,
    since a model has written it so or was cut off, stays the text that it is."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{param} needs 'function' with a 'name'", param)
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}")
    return {**call, "function": {**function, "arguments": arguments}}
