"""POST /tokenize and /detokenize: what the model's tokenizer and template make of a text.

GET /tokenizer_info: what evaluation harnesses ask for to use these two as their tokenizer.
"""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import APIRouter, Request
from msgspec import UNSET, Struct, UnsetType
from pydantic import BaseModel
from starlette.responses import Response

from octavo_engine.errors import RequestError
from octavo_engine.server.body import read_request
from octavo_engine.server.errors import from_engine, json_response
from octavo_engine.server.prepare import render_prompt
from octavo_engine.server.request_fields import ChatCompletionRequest
from octavo_engine.server.state import Loaded, ServerState
from octavo_engine.server.tokenize_fields import DetokenizeRequest, TokenizeRequest
from octavo_engine.text.token_bytes import token_text

F = TypeVar("F", TokenizeRequest, DetokenizeRequest)

BODIES: dict[str, type[BaseModel]] = {
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
"""What is posted to each path."""


class Tokenized(Struct, frozen=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class Detokenized(Struct, frozen=True):
    prompt: str


class TokenizerInfo(Struct, frozen=True):
    tokenizer_class: str
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    chat_template: str | None


def tokenize_router(state: ServerState) -> APIRouter:
    router = APIRouter()

    @router.post("/tokenize")
    async def tokenize_route(request: Request) -> Response:
        return await _answer(request, state, TokenizeRequest, tokenize)

    @router.post("/detokenize")
    async def detokenize_route(request: Request) -> Response:
        return await _answer(request, state, DetokenizeRequest, detokenize)

    @router.get("/tokenizer_info")
    async def tokenizer_info_route() -> Response:
        return json_response(tokenizer_info(state.require_engine()))

    return router


def tokenizer_info(loaded: Loaded) -> TokenizerInfo:
    known = loaded.tokenizer.hf_tokenizer
    return TokenizerInfo(
        tokenizer_class=type(known).__name__,
        model_max_length=loaded.engine.info.max_model_len,
        bos_token=known.bos_token,
        eos_token=known.eos_token,
        pad_token=known.pad_token,
        unk_token=known.unk_token,
        chat_template=loaded.tokenizer.chat_template,
    )


def tokenize(fields: TokenizeRequest, loaded: Loaded) -> Tokenized:
    tokenizer = loaded.tokenizer
    text, adds = fields.prompt, True
    if fields.messages is not None:
        text, adds = render_prompt(_as_chat(fields), loaded), False
    assert text is not None
    if fields.add_special_tokens is not None:
        adds = fields.add_special_tokens
    ids = tokenizer.encode(text, add_special_tokens=adds)
    names: list[str] | UnsetType = UNSET
    if fields.return_token_strs:
        names = [token_text(tokenizer.token_bytes(token_id)) for token_id in ids]
    return Tokenized(len(ids), loaded.engine.info.max_model_len, ids, names)


def detokenize(fields: DetokenizeRequest, loaded: Loaded) -> Detokenized:
    """Special tokens are written out. Raises `RequestError` for an id that is none."""
    vocab_size = loaded.engine.info.vocab_size
    for token_id in fields.tokens:
        if token_id >= vocab_size:
            message = f"token id {token_id} is outside the vocabulary [0, {vocab_size})"
            raise RequestError(message, "tokens")
    return Detokenized(loaded.tokenizer.decode(fields.tokens, skip_special_tokens=False))


def _as_chat(fields: TokenizeRequest) -> ChatCompletionRequest:
    names = ("messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs")
    same: dict[str, Any] = {name: getattr(fields, name) for name in names}
    return ChatCompletionRequest.model_construct(model="", tools=fields.tools, **same)


async def _answer(
    request: Request,
    state: ServerState,
    kind: type[F],
    work: Callable[[F, Loaded], Struct],
) -> Response:
    loaded = state.require_engine()
    with state.in_flight():
        fields = await read_request(request, kind, state.settings)
        if fields.model is not None:
            state.require_model(fields.model)
        try:
            return json_response(await asyncio.to_thread(work, fields, loaded))
        except RequestError as error:
            raise from_engine(error) from error
