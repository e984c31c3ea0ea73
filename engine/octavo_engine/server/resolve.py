"""From a checked request to sampling parameters: the client's word, else the model's, else neutral.

Pure but for the tokenizer that turns bad words into ids.
"""

from typing import TypeVar

from octavo_engine.errors import PromptTooLong, RequestError
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.server.request_fields import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
)
from octavo_engine.text.generation_config import GenerationDefaults
from octavo_engine.text.tokenizer import Tokenizer

T = TypeVar("T")

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for /v1/completions; for chat it is the rest of the context."""


def sampling_params(
    fields: SamplingFields, tokenizer: Tokenizer, num_prompt_tokens: int, max_model_len: int
) -> SamplingParams:
    """Raises `RequestError` when prompt and asked output do not fit the context."""
    defaults = tokenizer.defaults
    max_tokens = resolve_max_tokens(fields, defaults, num_prompt_tokens, max_model_len)
    top_k = _first(fields.top_k, defaults.top_k, 0)
    return SamplingParams(
        n=fields.n or 1,
        max_tokens=max_tokens,
        min_tokens=_checked_min_tokens(fields.min_tokens or 0, max_tokens),
        temperature=_first(fields.temperature, defaults.temperature, 1.0),
        top_p=_first(fields.top_p, defaults.top_p, 1.0),
        top_k=max(top_k, 0),  # -1 is another name for all tokens
        min_p=_first(fields.min_p, defaults.min_p, 0.0),
        repetition_penalty=_first(fields.repetition_penalty, defaults.repetition_penalty, 1.0),
        presence_penalty=fields.presence_penalty or 0.0,
        frequency_penalty=fields.frequency_penalty or 0.0,
        logit_bias=_logit_bias(fields.logit_bias),
        allowed_token_ids=fields.allowed_token_ids,
        bad_words_token_ids=_bad_words(fields.bad_words, tokenizer),
        seed=fields.seed,
        stop=fields.stops,
        stop_token_ids=fields.stop_token_ids or [],
        eos_token_ids=tokenizer.eos_token_ids,
        ignore_eos=fields.ignore_eos or False,
        include_stop_str_in_output=fields.include_stop_str_in_output or False,
        skip_special_tokens=_first(fields.skip_special_tokens, None, True),
        logprobs=num_logprobs(fields),
        prompt_logprobs=num_prompt_logprobs(fields),
    )


def num_logprobs(fields: SamplingFields) -> int | None:
    if isinstance(fields, CompletionRequest):
        return fields.logprobs
    if isinstance(fields, ChatCompletionRequest) and fields.logprobs:
        return fields.top_logprobs or 0
    return None


def num_prompt_logprobs(fields: SamplingFields) -> int | None:
    if isinstance(fields, CompletionRequest) and fields.echo and fields.logprobs is not None:
        return max(fields.logprobs, fields.prompt_logprobs or 0)
    return fields.prompt_logprobs


def resolve_max_tokens(
    fields: SamplingFields,
    defaults: GenerationDefaults,
    num_prompt_tokens: int,
    max_model_len: int,
) -> int:
    """What the client set must fit; a default is cut to what is left of the context."""
    name, asked = _asked_max_tokens(fields)
    num_left = max_model_len - num_prompt_tokens
    if num_left < (asked != 0):
        more = "" if asked == 0 else " and at least one more"
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens; the model's context of {max_model_len} "
            f"tokens has to hold the prompt{more}",
            _prompt_param(fields),
        )
    if asked is not None and asked > num_left:
        raise PromptTooLong(
            f"the prompt has {num_prompt_tokens} tokens and '{name}' asks for {asked} more: "
            f"together {num_prompt_tokens + asked}, over the model's context of {max_model_len}",
            name,
        )
    if asked is not None:
        return asked
    default = defaults.max_new_tokens
    if default is None and isinstance(fields, CompletionRequest):
        default = COMPLETION_MAX_TOKENS
    return num_left if default is None else min(default, num_left)


def refuse_overlong_text(text: str, tokenizer: Tokenizer, max_model_len: int, param: str) -> None:
    """Refuses what cannot fit before any time goes into tokenising it."""
    least_num_tokens = -(-len(text) // tokenizer.max_token_chars)
    if least_num_tokens > max_model_len:
        raise PromptTooLong(
            f"the prompt has {len(text)} characters, so at least {least_num_tokens} tokens; "
            f"the model's context is {max_model_len} tokens",
            param,
        )


def _asked_max_tokens(fields: SamplingFields) -> tuple[str, int | None]:
    if isinstance(fields, ChatCompletionRequest) and fields.max_completion_tokens is not None:
        return "max_completion_tokens", fields.max_completion_tokens
    return "max_tokens", fields.max_tokens


def _prompt_param(fields: SamplingFields) -> str:
    return "messages" if isinstance(fields, ChatCompletionRequest) else "prompt"


def _first(given: T | None, model_default: T | None, neutral: T) -> T:
    if given is not None:
        return given
    return neutral if model_default is None else model_default


def _checked_min_tokens(min_tokens: int, max_tokens: int) -> int:
    if min_tokens > max_tokens:
        raise RequestError(
            f"min_tokens is {min_tokens}, more than the {max_tokens} tokens allowed", "min_tokens"
        )
    return min_tokens


def _logit_bias(logit_bias: dict[str, float] | None) -> dict[int, float] | None:
    if logit_bias is None:
        return None
    ids = {}
    for key, bias in logit_bias.items():
        if not (key.isascii() and key.isdigit() and len(key) <= 9):
            raise RequestError(f"logit_bias: {key[:40]!r} is not a token id", "logit_bias")
        ids[int(key)] = bias
    return ids


def _bad_words(words: list[str] | None, tokenizer: Tokenizer) -> list[list[int]] | None:
    if not words:
        return None
    # A word has other tokens at the start of a text than after a space.
    spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
    ids = [tokenizer.encode(spelling, add_special_tokens=False) for spelling in spellings]
    return [sequence for i, sequence in enumerate(ids) if sequence and sequence not in ids[:i]]
