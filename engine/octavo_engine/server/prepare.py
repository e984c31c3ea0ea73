"""From a checked request to engine requests: template, tokens, sampling parameters.

Slow for long prompts, so routes call it in a worker thread. Raises `RequestError`.
"""

from collections.abc import Sequence

from octavo_engine.errors import RequestError
from octavo_engine.messages import EngineRequest
from octavo_engine.server.request_fields import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
)
from octavo_engine.server.resolve import refuse_overlong_text, sampling_params
from octavo_engine.server.state import Loaded
from octavo_engine.text.chat import template_messages
from octavo_engine.text.tokenizer import Tokenizer

MAX_PROMPTS = 128
"""Prompts in one /v1/completions request."""


def chat_requests(
    fields: ChatCompletionRequest, loaded: Loaded, request_id: str, arrival_time_s: float
) -> list[EngineRequest]:
    tokenizer, max_model_len = loaded.tokenizer, loaded.engine.info.max_model_len
    continues = fields.continue_final_message or False
    text = tokenizer.render_chat(
        template_messages(
            [message.model_dump() for message in fields.messages],
            knows_developer=tokenizer.template_mentions("developer"),
        ),
        add_generation_prompt=(fields.add_generation_prompt is not False) and not continues,
        continue_final_message=continues,
        template_kwargs=fields.chat_template_kwargs,
    )
    refuse_overlong_text(text, tokenizer, max_model_len, "messages")
    # The template has written the special tokens: adding them again would double the first.
    ids = tokenizer.encode(text, add_special_tokens=False)
    return [_engine_request(fields, loaded, request_id, ids, arrival_time_s)]


def completion_requests(
    fields: CompletionRequest, loaded: Loaded, request_id: str, arrival_time_s: float
) -> list[EngineRequest]:
    prompts = prompt_token_ids(fields, loaded.tokenizer, loaded.engine.info.max_model_len)
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"{len(prompts)} prompts, more than {MAX_PROMPTS}", "prompt")
    return [
        _engine_request(fields, loaded, f"{request_id}-{i}", ids, arrival_time_s)
        for i, ids in enumerate(prompts)
    ]


def prompt_token_ids(
    fields: CompletionRequest, tokenizer: Tokenizer, max_model_len: int
) -> list[list[int]]:
    """The four forms of `prompt` as a list of token id lists."""
    prompt = fields.prompt
    if not prompt:
        raise RequestError("the prompt is empty", "prompt")
    texts: list[str] = []
    id_lists: list[list[int]] = []
    if isinstance(prompt, str):
        texts = [prompt]
    else:
        texts = [item for item in prompt if isinstance(item, str)]
        id_lists = [item for item in prompt if isinstance(item, list)]
        flat_ids = [item for item in prompt if isinstance(item, int)]
        id_lists = [flat_ids] if flat_ids else id_lists
    add_special_tokens = fields.add_special_tokens is not False
    for text in texts:
        refuse_overlong_text(text, tokenizer, max_model_len, "prompt")
        id_lists.append(tokenizer.encode(text, add_special_tokens=add_special_tokens))
    if not all(id_lists):
        raise RequestError("the prompt has no tokens", "prompt")
    return id_lists


def _engine_request(
    fields: SamplingFields,
    loaded: Loaded,
    request_id: str,
    ids: Sequence[int],
    arrival_time_s: float,
) -> EngineRequest:
    max_model_len = loaded.engine.info.max_model_len
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(ids),
        params=sampling_params(fields, loaded.tokenizer, len(ids), max_model_len),
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt,
        arrival_time_s=arrival_time_s,
    )
