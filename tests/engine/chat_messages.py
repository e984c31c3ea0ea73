"""Chats with tools over scripted answers: a server that reads calls, and messages put together as
clients do it."""

from collections.abc import Sequence
from typing import Any

from tests.engine.byte_tokenizer import make_tokenizer
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.joined import joined_chat
from tests.engine.parser_cases import NAMES, Case
from tests.engine.server_client import make_state

from octavo_engine.server.chat_formats import choose_formats
from octavo_engine.server.settings import ReasoningParserName, ToolParserName
from octavo_engine.server.state import Loaded
from octavo_engine.text.tokenizer import Tokenizer

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in NAMES
]
TOOL_TEMPLATE = (
    "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    "{% for m in messages %}<|start|>{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}={{ c.function.arguments.city }}"
    "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant:{% endif %}"
)


def state_of(
    engine: EchoEngine,
    *,
    tool_parser: ToolParserName = "auto",
    reasoning_parser: ReasoningParserName = "auto",
    tokenizer: Tokenizer | None = None,
) -> Any:
    tokenizer = tokenizer or make_tokenizer(chat_template=TOOL_TEMPLATE)
    state = make_state(engine, tokenizer)
    formats = choose_formats(tool_parser, reasoning_parser, tokenizer)
    state.loaded = Loaded(engine, tokenizer, formats)
    return state


def engine_of(text: str, tokens_per_step: int | Sequence[int] = 1) -> EchoEngine:
    return EchoEngine(always(text), tokens_per_step=tokens_per_step, max_model_len=4000)


def message_of(answer: dict[str, Any]) -> tuple[Case, str]:
    (choice,) = answer["choices"]
    message = choice["message"]
    calls = message.get("tool_calls", [])
    assert all(call["type"] == "function" and call["id"] for call in calls)
    if calls and not message["content"]:
        assert message["content"] is None
    assert message.get("reasoning") == message.get("reasoning_content")
    case = Case(
        text="",
        content=message["content"] or "",
        calls=[(call["function"]["name"], call["function"]["arguments"]) for call in calls],
        reasoning=message.get("reasoning", ""),
    )
    return case, choice["finish_reason"]


def joined_message(chunks: list[dict[str, Any]]) -> tuple[Case, str]:
    return message_of({"choices": joined_chat(chunks)})
