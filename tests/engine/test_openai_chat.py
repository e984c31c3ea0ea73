"""From the messages of a chat to the prompt: template, roles, parts, fields that steer them."""

from typing import Any

import pytest
from tests.engine.byte_tokenizer import (
    CHAT_TEMPLATE,
    END_ID,
    START_ID,
    ids_of,
    make_tokenizer,
    make_tokenizer_with_bos,
)
from tests.engine.echo_engine import EchoEngine, always
from tests.engine.server_client import chat_body, serving

STEERED = (
    "{% if effort is defined %}[{{ effort }}]{% endif %}"
    "{% if reasoning_effort is defined %}({{ reasoning_effort }}){% endif %}" + CHAT_TEMPLATE
)
THINKING = "{% if enable_thinking is defined %}<{{ enable_thinking }}>{% endif %}" + CHAT_TEMPLATE


async def prompt_of(template: str = CHAT_TEMPLATE, **fields: Any) -> str:
    """The prompt that the engine gets, without its special tokens."""
    engine = EchoEngine(always("x"))
    async with serving(engine, make_tokenizer(chat_template=template)) as client:
        await client.chat(**fields)
    return bytes(i for i in engine.requests[0].prompt_token_ids if i < 256).decode()


async def test_chat_prompt_is_the_rendered_template() -> None:
    engine = EchoEngine(always("x"))
    async with serving(engine) as client:
        await client.chat("hi")
    turns = [START_ID, *ids_of("user:hi"), END_ID, START_ID, *ids_of("assistant:")]
    assert engine.requests[0].prompt_token_ids == turns


@pytest.mark.parametrize("beginning", ["", "<|start|>"])
async def test_a_rendered_conversation_gets_no_beginning_but_its_templates(beginning: str) -> None:
    template = f"{beginning}{{{{ messages[0].content }}}}"
    engine = EchoEngine(always("x"))
    async with serving(engine, make_tokenizer_with_bos(template)) as client:
        await client.chat("hi")
    expected = [START_ID] * bool(beginning) + ids_of("hi")
    assert engine.requests[0].prompt_token_ids == expected


async def test_content_parts_are_joined() -> None:
    engine = EchoEngine(always("x"))
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    async with serving(engine) as client:
        await client.chat(parts)  # type: ignore[arg-type]  # parts in the place of text
    assert bytes(ids_of("user:a\nb")) in bytes(
        i for i in engine.requests[0].prompt_token_ids if i < 256
    )


async def test_developer_is_the_system_role_of_templates_that_do_not_know_it() -> None:
    engine = EchoEngine(always("x"))
    body = {"model": "echo", "messages": [{"role": "developer", "content": "be brief"}]}
    async with serving(engine) as client:
        await client.ok("/v1/chat/completions", body)
    assert bytes(ids_of("system:be brief")) in bytes(
        i for i in engine.requests[0].prompt_token_ids if i < 256
    )


async def test_an_assistants_refusal_can_be_sent_back() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "I will not"}]
    engine = EchoEngine(always("x"))
    async with serving(engine) as client:
        messages = [{"role": "assistant", "content": parts}, {"role": "user", "content": "why"}]
        await client.ok("/v1/chat/completions", {"model": "echo", "messages": messages})
    assert b"assistant:a\nI will not" in bytes(
        i for i in engine.requests[0].prompt_token_ids if i < 256
    )


async def test_the_template_asks_for_an_answer_unless_told_not_to() -> None:
    assert await prompt_of() == "user:hiassistant:"
    assert await prompt_of(add_generation_prompt=False) == "user:hi"


async def test_the_final_message_can_be_continued() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well, I"}]
    assert await prompt_of(messages=messages) == "user:hiassistant:Well, Iassistant:"
    continued = await prompt_of(messages=messages, continue_final_message=True)
    assert continued == "user:hiassistant:Well, I"


async def test_variables_reach_the_template() -> None:
    assert (await prompt_of(STEERED, chat_template_kwargs={"effort": "much"})).startswith("[much]")


async def test_reasoning_effort_reaches_a_template_that_knows_it() -> None:
    assert (await prompt_of(STEERED, reasoning_effort="low")).startswith("(low)")
    assert (await prompt_of(THINKING, reasoning_effort="none")).startswith("<False>")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "high"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ],
)
async def test_what_cannot_steer_is_refused(fields: dict[str, Any], param: str | None) -> None:
    async with serving(EchoEngine(always("x"))) as client:
        error = await client.refused("/v1/chat/completions", chat_body(**fields))
    assert error["param"] == param
