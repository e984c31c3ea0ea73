"""One generated sequence as text: joins the detokenizer and the stop strings over engine deltas.

The same object serves streams and whole answers, so both give one text. Pure: no I/O, no clock.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from octavo_engine.messages import FinishReason, PositionLogprobs, RequestDelta
from octavo_engine.parsers.message import MessageDelta
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.text.stop_strings import StopStringFilter

if TYPE_CHECKING:
    from octavo_engine.text.tokenizer import Tokenizer


class TokenPiece(msgspec.Struct, frozen=True):
    """A token with its place in the sequence's text."""

    token_id: int
    text_offset: int
    """Characters of output text before this token's own."""
    logprobs: PositionLogprobs | None


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What can be given to the client now."""

    text: str
    tokens: list[TokenPiece]
    """Tokens whose text is out, in order; over a whole sequence each counted token comes once."""
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    message: MessageDelta = MessageDelta()
    """What the text means, where a reader was given."""
    has_calls: bool = False
    """At the end: the sequence holds tool calls, and each is complete."""
    has_open_call: bool = False
    """At the end: the arguments of the last call are cut off."""
    is_cut: bool = False
    """The end is ours: the engine does not know of it yet."""


class Reader(Protocol):
    """Reads the text as a message, piece by piece."""

    @property
    def is_over(self) -> bool:
        """Nothing that may follow has a place in the message."""
        ...

    @property
    def is_reasoning(self) -> bool: ...

    @property
    def has_calls(self) -> bool: ...

    @property
    def has_open_call(self) -> bool: ...

    def push(self, text: str) -> None: ...

    def finish(self) -> None: ...

    def take(self) -> MessageDelta: ...


class SequenceText:
    """State of one sequence. After a delta with a finish reason nothing more may be pushed."""

    def __init__(
        self,
        tokenizer: "Tokenizer",
        params: SamplingParams,
        prompt_token_ids: Sequence[int],
        *,
        reader: Reader | None = None,
        kept_ids: frozenset[int] = frozenset(),
    ) -> None:
        """kept_ids: special tokens that are text for the reader."""
        self._params = params
        self._reader = reader
        self._stop_ids = frozenset(params.stop_token_ids) | frozenset(params.eos_token_ids)
        self._detokenizer = tokenizer.detokenizer(
            prompt_token_ids,
            skip_special_tokens=params.skip_special_tokens,
            kept_ids=kept_ids,
        )
        self._filter = StopStringFilter(params.stop, include_stop=params.include_stop_str_in_output)
        self._held_tokens: list[TokenPiece] = []
        self._num_out_chars = 0
        self._num_decoded_chars = 0
        self.num_tokens = 0
        """Tokens counted so far: up to and with the one that completed a stop string."""
        self.num_reasoning_tokens = 0
        self.finished = False

    def push(self, delta: RequestDelta) -> TextDelta:
        """Takes one engine delta. A stop string ends the sequence; tokens after it do not count."""
        texts: list[str] = []
        for i, token_id in enumerate(delta.token_ids):
            ends_here = delta.finish_reason == "stop" and i == len(delta.token_ids) - 1
            text = self._decode(token_id, ends_sequence=ends_here)
            logprobs = delta.logprobs[i] if delta.logprobs else None
            self._held_tokens.append(TokenPiece(token_id, self._num_decoded_chars, logprobs))
            self._num_decoded_chars += len(text)
            self.num_tokens += 1
            out, stop = self._match(text)
            texts.append(self._read(out))
            if self._reader is not None and self._reader.is_reasoning:
                self.num_reasoning_tokens += 1
            if stop is not None or (self._reader is not None and self._reader.is_over):
                return self._finish("".join(texts), "stop", stop, is_cut=True)
        if delta.finish_reason is None:
            return self._continue("".join(texts))
        return self._flush("".join(texts), delta)

    def _decode(self, token_id: int, *, ends_sequence: bool) -> str:
        is_stop_token = ends_sequence and token_id in self._stop_ids
        if is_stop_token and not self._params.include_stop_str_in_output:
            return ""
        return self._detokenizer.push(token_id)

    def _match(self, text: str) -> tuple[str, str | None]:
        # Text of the first min_tokens tokens cannot be part of a match and need not be held.
        if self.num_tokens <= self._params.min_tokens:
            return text, None
        return self._filter.push(text)

    def _read(self, text: str) -> str:
        if self._reader is not None and text:
            self._reader.push(text)
        return text

    def _flush(self, text: str, delta: RequestDelta) -> TextDelta:
        out, stop = self._match(self._detokenizer.flush())
        text += self._read(out)
        if stop is not None:
            return self._finish(text, "stop", stop, is_cut=True)
        text += self._read(self._filter.flush())
        return self._finish(text, delta.finish_reason, delta.stop_reason, delta.error)

    def _finish(
        self,
        text: str,
        finish_reason: FinishReason | None,
        stop_reason: int | str | None,
        error: str | None = None,
        *,
        is_cut: bool = False,
    ) -> TextDelta:
        self.finished = True
        if self._reader is not None:
            self._reader.finish()
        tokens, self._held_tokens = self._held_tokens, []
        return TextDelta(
            text=text,
            tokens=tokens,
            finish_reason=finish_reason,
            stop_reason=stop_reason,
            error=error,
            message=self._message(),
            has_calls=self._reader is not None and self._reader.has_calls,
            has_open_call=self._reader is not None and self._reader.has_open_call,
            is_cut=is_cut,
        )

    def _message(self) -> MessageDelta:
        return MessageDelta() if self._reader is None else self._reader.take()

    def _continue(self, text: str) -> TextDelta:
        self._num_out_chars += len(text)
        # A token is out once the text after it has begun to come, or all text so far is out.
        all_out = self._num_out_chars == self._num_decoded_chars
        num_out = len(self._held_tokens) if all_out else self._num_tokens_out()
        tokens = self._held_tokens[:num_out]
        del self._held_tokens[:num_out]
        return TextDelta(text=text, tokens=tokens, message=self._message())

    def _num_tokens_out(self) -> int:
        """Held tokens that end within the text given out: those before the last one that began."""
        begun = sum(piece.text_offset <= self._num_out_chars for piece in self._held_tokens)
        return max(begun - 1, 0)
