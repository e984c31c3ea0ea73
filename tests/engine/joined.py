"""Streams put together as clients do it: deltas in, choices or items of the whole answer out."""

from typing import Any


def joined_chat(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that a client puts together from a chat's stream."""
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for chunk in chunks for part in chunk["choices"]):
        message = {"role": "", "content": "", "refusal": None}
        fresh = {"index": part["index"], "message": message, "logprobs": None}
        choice = choices.setdefault(part["index"], fresh)
        _add_delta(choice["message"], part["delta"])
        _add_logprobs(choice, part["logprobs"])
        if part["finish_reason"] is not None:
            choice |= {name: part[name] for name in ("finish_reason", "stop_reason")}
    for choice in choices.values():
        message = choice["message"]
        if not message["content"] and ("tool_calls" in message or "function_call" in message):
            message["content"] = None
    return [choices[index] for index in sorted(choices)]


def joined_completion(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The choices that a client puts together from a completions stream."""
    choices: dict[int, dict[str, Any]] = {}
    for part in (part for chunk in chunks for part in chunk["choices"]):
        fresh = {"index": part["index"], "text": "", "logprobs": None}
        choice = choices.setdefault(part["index"], fresh)
        choice["text"] += part["text"]
        _add_logprobs(choice, part["logprobs"])
        if part["finish_reason"] is not None:
            choice |= {name: part[name] for name in ("finish_reason", "stop_reason")}
    return [choices[index] for index in sorted(choices)]


def joined_items(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items as a client of /v1/responses puts them together from nothing but the deltas."""
    items: list[dict[str, Any]] = []
    for event in events:
        match event["type"]:
            case "response.output_item.added":
                assert event["output_index"] == len(items)
                items.append(event["item"])
            case "response.content_part.added":
                items[event["output_index"]]["content"].append(event["part"])
            case "response.output_text.delta" | "response.reasoning_text.delta":
                part = items[event["output_index"]]["content"][0]
                part["text"] += event["delta"]
                if event.get("logprobs"):
                    part["logprobs"] = part["logprobs"] + event["logprobs"]
            case "response.function_call_arguments.delta":
                items[event["output_index"]]["arguments"] += event["delta"]
            case "response.output_item.done":
                done = event["item"]
                assert {**items[event["output_index"]], "status": done["status"]} == done
                items[event["output_index"]]["status"] = done["status"]
    return items


def without_ids(value: Any) -> Any:
    """The same without the ids of calls and items, which differ from answer to answer."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if isinstance(value, dict):
        kept = {name: each for name, each in value.items() if name not in ("id", "call_id")}
        return {name: without_ids(each) for name, each in kept.items()}
    return value


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    """Fields of text grow; a call is known by its index."""
    for name, value in delta.items():
        if name == "tool_calls":
            _add_calls(message.setdefault(name, []), value)
        elif name == "function_call":
            call = message.setdefault(name, {"name": "", "arguments": ""})
            for key, text in value.items():
                call[key] += text
        else:
            message[name] = message.get(name, "") + value


def _add_calls(calls: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    for part in parts:
        if part["index"] == len(calls):
            rest = {name: value for name, value in part.items() if name != "index"}
            calls.append({**rest, "function": {**part["function"]}})
        else:
            assert "id" not in part
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]


def _add_logprobs(choice: dict[str, Any], part: dict[str, Any] | None) -> None:
    """Every list of it grows."""
    if part is None:
        return
    known = choice["logprobs"] or {
        name: [] if value is not None else None for name, value in part.items()
    }
    choice["logprobs"] = {
        name: known[name] + value if isinstance(value, list) else value
        for name, value in part.items()
    }
