"""From a checked request to engine requests: template, tokens, sampling parameters.

Slow for long prompts, so routes call it in a worker thread. Raises `RequestError`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo_engine.errors import RequestError
from octavo_engine.messages import EngineRequest
from octavo_engine.server.chat_plan import ChatPlan, plan_chat
from octavo_engine.server.request_fields import (
    ChatCompletionRequest,
    CompletionRequest,
    SamplingFields,
)
from octavo_engine.server.resolve import refuse_overlong_text, sampling_params
from octavo_engine.server.state import Loaded
from octavo_engine.server.structure import GrammarCheck, answer_grammar
from octavo_engine.text.chat import messages_with_tools, template_messages
from octavo_engine.text.tokenizer import Tokenizer

MAX_PROMPTS = 128
"""Prompts in one /v1/completions request."""


@dataclass(frozen=True)
class Prepared:
    """What a request asks of the engine and how its answer is read."""

    requests: list[EngineRequest]
    plan: ChatPlan | None = None
    """Of a chat; the text of a completion is its answer as it is."""
    grammars: tuple[GrammarCheck, ...] = ()
    """To be compiled before anything else: of structured output, when a field asks for it."""


def prepare_chat(
    fields: ChatCompletionRequest, loaded: Loaded, request_id: str, arrival_time_s: float
) -> Prepared:
    tokenizer, max_model_len = loaded.tokenizer, loaded.engine.info.max_model_len
    text = render_prompt(fields, loaded)
    refuse_overlong_text(text, tokenizer, max_model_len, "messages")
    # The template has written the special tokens: adding them again would double the first.
    ids = tokenizer.encode(text, add_special_tokens=False)
    plan = plan_chat(fields, loaded.formats, tokenizer, text)
    request = _engine_request(fields, loaded, request_id, ids, arrival_time_s, plan.grammar)
    return Prepared([request], plan, plan.checks)


def render_prompt(fields: ChatCompletionRequest, loaded: Loaded) -> str:
    try:
        return _rendered(fields, loaded)
    except RecursionError as error:
        # Arguments of earlier calls are JSON in strings, which the body's own limit does not see.
        raise RequestError("the messages hold JSON of too many levels", "messages") from error


def _rendered(fields: ChatCompletionRequest, loaded: Loaded) -> str:
    tokenizer = loaded.tokenizer
    continues = fields.continue_final_message or False
    tools = [tool.model_dump(exclude_none=True) for tool in fields.offered_tools]
    messages = template_messages(
        [message.model_dump() for message in fields.messages],
        knows_developer=tokenizer.template_mentions("developer"),
    )
    knows_tools = tokenizer.template_mentions("tools")
    if not knows_tools:
        messages = messages_with_tools(messages, tools)
    return tokenizer.render_chat(
        messages,
        add_generation_prompt=(fields.add_generation_prompt is not False) and not continues,
        continue_final_message=continues,
        template_kwargs=_template_kwargs(fields, tokenizer),
        tools=tools if knows_tools else None,
    )


def _template_kwargs(fields: ChatCompletionRequest, tokenizer: Tokenizer) -> dict[str, Any]:
    kwargs = dict(fields.chat_template_kwargs or {})
    effort = fields.reasoning_effort
    if effort is None:
        return kwargs
    if tokenizer.template_mentions("reasoning_effort"):
        return {"reasoning_effort": effort, **kwargs}
    if effort == "none" and tokenizer.template_mentions("enable_thinking"):
        return {"enable_thinking": False, **kwargs}
    raise RequestError(
        f"'reasoning_effort' {effort!r} is not supported by this model's chat template",
        "reasoning_effort",
    )


def prepare_completion(
    fields: CompletionRequest, loaded: Loaded, request_id: str, arrival_time_s: float
) -> Prepared:
    prompts = fields.prompts
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(f"{len(prompts)} prompts, more than {MAX_PROMPTS}", "prompt")
    if not any(prompts):
        raise RequestError("the prompt is empty", "prompt")
    found = answer_grammar(fields)
    grammar, param = (found[0].text(), found[1]) if found is not None else (None, "")
    requests = []
    for idx, prompt in enumerate(prompts):
        with _naming_prompt(idx if fields.has_prompt_list else None):
            ids = _prompt_token_ids(prompt, fields, loaded)
            own_id = f"{request_id}-{idx}"
            requests.append(_engine_request(fields, loaded, own_id, ids, arrival_time_s, grammar))
    checks = () if grammar is None else (GrammarCheck(grammar, param),)
    return Prepared(requests, None, checks)


@contextmanager
def _naming_prompt(idx: int | None) -> Iterator[None]:
    """Complaints say which of several prompts it is."""
    try:
        yield
    except RequestError as error:
        if idx is None or error.param != "prompt":
            raise
        raise type(error)(f"prompt {idx}: {error}", f"prompt.{idx}") from error


def _prompt_token_ids(
    prompt: str | list[int], fields: CompletionRequest, loaded: Loaded
) -> list[int]:
    tokenizer = loaded.tokenizer
    if isinstance(prompt, str):
        refuse_overlong_text(prompt, tokenizer, loaded.engine.info.max_model_len, "prompt")
        adds = fields.add_special_tokens is not False
        prompt = tokenizer.encode(prompt, add_special_tokens=adds)
    if not prompt:
        raise RequestError("the prompt has no tokens", "prompt")
    return prompt


def _engine_request(
    fields: SamplingFields,
    loaded: Loaded,
    request_id: str,
    ids: Sequence[int],
    arrival_time_s: float,
    grammar: str | None,
) -> EngineRequest:
    max_model_len = loaded.engine.info.max_model_len
    params = sampling_params(fields, loaded.tokenizer, len(ids), max_model_len)
    return EngineRequest(
        request_id=request_id,
        prompt_token_ids=list(ids),
        params=msgspec.structs.replace(params, grammar=grammar),
        priority=fields.priority or 0,
        cache_salt=fields.cache_salt,
        arrival_time_s=arrival_time_s,
    )
