"""What `LLM` takes as prompts, as token ids. Knows no engine."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypedDict, cast

from octavo_engine.errors import RequestError
from octavo_engine.text.tokenizer import Tokenizer


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]


class TextPrompt(TypedDict):
    prompt: str


Prompt = str | list[int] | TokensPrompt | TextPrompt
Message = Mapping[str, object]
Encoded = tuple[str | None, list[int]]
"""The text, where there is one, and its ids."""


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Complaints of a request say which one it is."""
    try:
        yield
    except RequestError as error:
        raise type(error)(f"{what}: {error}", error.param) from error


def encode_prompts(tokenizer: Tokenizer, prompts: Prompt | Sequence[Prompt]) -> list[Encoded]:
    """Raises RequestError with the index of the prompt that is none."""
    encoded = []
    for idx, prompt in enumerate(_as_list(prompts)):
        with naming(f"prompt {idx}"):
            encoded.append(_encode(tokenizer, prompt))
    return encoded


def encode_conversations(
    tokenizer: Tokenizer,
    messages: Sequence[Message] | Sequence[Sequence[Message]],
    *,
    add_generation_prompt: bool,
    template_kwargs: Mapping[str, object] | None,
) -> list[Encoded]:
    """One conversation or a list of them. Raises RequestError with the conversation's index."""
    encoded: list[Encoded] = []
    for idx, conversation in enumerate(_as_conversations(messages)):
        with naming(f"conversation {idx}"):
            text = tokenizer.render_chat(
                conversation,
                add_generation_prompt=add_generation_prompt,
                template_kwargs=template_kwargs,
            )
            # The template has written the special tokens.
            encoded.append((text, tokenizer.encode(text, add_special_tokens=False)))
    return encoded


def _encode(tokenizer: Tokenizer, prompt: Prompt) -> Encoded:
    match prompt:
        case str():
            return prompt, tokenizer.encode(prompt)
        case list():
            return None, _checked_ids(prompt)
        case {"prompt_token_ids": list(ids)}:
            return None, _checked_ids(ids)
        case {"prompt": str(text)}:
            return text, tokenizer.encode(text)
    raise RequestError(
        "a prompt is a text, a list of token ids or {'prompt_token_ids': [...]}, "
        f"got {str(prompt)[:80]}",
        "prompts",
    )


def _checked_ids(ids: list[int]) -> list[int]:
    for token_id in ids:
        if type(token_id) is not int:
            raise RequestError(f"{token_id!r:.80} is no token id", "prompts")
    return ids


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    if isinstance(prompts, str | dict):
        return [prompts]
    as_list = list(prompts)
    if as_list and all(isinstance(item, int) for item in as_list):
        return [cast("list[int]", as_list)]  # one prompt given as its ids
    return cast("list[Prompt]", as_list)


def _as_conversations(
    messages: Sequence[Message] | Sequence[Sequence[Message]],
) -> list[Sequence[Message]]:
    if messages and isinstance(messages[0], Mapping):
        return [cast("Sequence[Message]", messages)]  # one conversation
    return cast("list[Sequence[Message]]", list(messages))
