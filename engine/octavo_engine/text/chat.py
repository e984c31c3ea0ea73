"""Conversations in the form that chat templates expect. Knows no HTTP and renders nothing."""

import json
from collections.abc import Mapping, Sequence
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
        _template_message(message, idx, knows_developer) for idx, message in enumerate(messages)
    ]


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
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(part["text"] for part in content)


def _tool_call(call: Mapping[str, Any], param: str) -> dict[str, Any]:
    """Arguments travel as JSON text; templates print an object in their own way."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"{param} needs 'function' with a 'name'", param)
    arguments = function.get("arguments", "{}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise RequestError(f"{param}.function.arguments is not JSON: {error}", param) from error
    return {**call, "function": {**function, "arguments": arguments}}
