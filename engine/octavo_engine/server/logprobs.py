"""Logprobs in the forms of the two endpoints. Knows token bytes, nothing of sampling."""

from collections.abc import Sequence
from typing import Any

from octavo_engine.messages import PositionLogprobs, TokenLogprob
from octavo_engine.server.response_types import (
    ChatLogprobs,
    CompletionLogprobs,
    ContentLogprob,
    TokenLogprobEntry,
)
from octavo_engine.text.sequence_text import TokenPiece
from octavo_engine.text.token_bytes import token_text
from octavo_engine.text.tokenizer import Tokenizer

MIN_LOGPROB = -9999.0
"""JSON has no minus infinity; this is what OpenAI sends for a token that cannot occur."""


def chat_logprobs(pieces: Sequence[TokenPiece], tokenizer: Tokenizer) -> ChatLogprobs | None:
    known = [piece.logprobs for piece in pieces if piece.logprobs is not None]
    if not known:
        return None
    return ChatLogprobs([_content_logprob(position, tokenizer) for position in known])


def completion_logprobs(
    pieces: Sequence[TokenPiece], tokenizer: Tokenizer, first_offset: int
) -> CompletionLogprobs | None:
    """`first_offset`: characters before the output, where the prompt is echoed."""
    known = [(piece, piece.logprobs) for piece in pieces if piece.logprobs is not None]
    if not known:
        return None
    return CompletionLogprobs(
        text_offset=[first_offset + piece.text_offset for piece, _ in known],
        token_logprobs=[_finite(position.chosen) for _, position in known],
        tokens=[token_text(tokenizer.token_bytes(piece.token_id)) for piece, _ in known],
        top_logprobs=[_top_by_text(position, tokenizer) for _, position in known],
    )


def echoed_logprobs(
    prompt_token_ids: Sequence[int],
    positions: Sequence[PositionLogprobs | None],
    tokenizer: Tokenizer,
    echoed_text: str,
) -> CompletionLogprobs:
    """Of the prompt's own tokens, with their places in its echo; the first has no logprob."""
    texts = [token_text(tokenizer.token_bytes(token_id)) for token_id in prompt_token_ids]
    # A special token takes room only where the text has it: one that was added to it does not.
    detokenizer = tokenizer.detokenizer(kept_ids=tokenizer.special_ids_in(echoed_text))
    offsets, num_chars = [], 0
    for token_id in prompt_token_ids:
        offsets.append(num_chars)
        num_chars += len(detokenizer.push(token_id))
    return CompletionLogprobs(
        text_offset=offsets,
        token_logprobs=[None if p is None else _finite(p.chosen) for p in positions],
        tokens=texts,
        top_logprobs=[None if p is None else _top_by_text(p, tokenizer) for p in positions],
    )


def joined(first: CompletionLogprobs, second: CompletionLogprobs | None) -> CompletionLogprobs:
    if second is None:
        return first
    return CompletionLogprobs(
        text_offset=first.text_offset + second.text_offset,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        tokens=first.tokens + second.tokens,
        top_logprobs=first.top_logprobs + second.top_logprobs,
    )


def prompt_logprobs_by_id(
    positions: Sequence[PositionLogprobs | None], tokenizer: Tokenizer
) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` field of other engines: for each position, token id to its facts."""
    return [None if p is None else _by_id(p, tokenizer) for p in positions]


def _by_id(position: PositionLogprobs, tokenizer: Tokenizer) -> dict[str, Any]:
    return {
        str(token.token_id): {
            "logprob": _finite(token),
            "rank": token.rank,
            "decoded_token": token_text(tokenizer.token_bytes(token.token_id)),
        }
        for token in [position.chosen, *position.top]
    }


def _content_logprob(position: PositionLogprobs, tokenizer: Tokenizer) -> ContentLogprob:
    chosen = _entry(position.chosen, tokenizer)
    top = [_entry(token, tokenizer) for token in position.top]
    return ContentLogprob(chosen.token, chosen.logprob, chosen.bytes, top)


def _entry(token: TokenLogprob, tokenizer: Tokenizer) -> TokenLogprobEntry:
    token_bytes = tokenizer.token_bytes(token.token_id)
    return TokenLogprobEntry(token_text(token_bytes), _finite(token), list(token_bytes))


def _top_by_text(position: PositionLogprobs, tokenizer: Tokenizer) -> dict[str, float]:
    # OpenAI adds the chosen token when it is not among the most likely ones.
    tokens = [*position.top, position.chosen]
    by_text: dict[str, float] = {}
    for token in tokens:
        by_text.setdefault(token_text(tokenizer.token_bytes(token.token_id)), _finite(token))
    return by_text


def _finite(token: TokenLogprob) -> float:
    return max(token.logprob, MIN_LOGPROB)
