"""Token ids to text, one token at a time: what is certain and no later token can change.

A character cut by a token border waits until it is whole, so U+FFFD appears only for bytes that no
later token could have completed. Knows nothing of stop strings.
"""

import codecs
from collections.abc import Callable, Sequence
from typing import Protocol

from octavo_engine.text.token_bytes import TokenBytes

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_CONTEXT_LEN = 6
"""Prompt tokens that a generic decoder sees before the output, so that leading spaces are kept."""
_MAX_PENDING_LEN = 16
"""Tokens after which unfinished text is given out as it is: no character needs so many."""


class Detokenizer(Protocol):
    def push(self, token_id: int) -> str:
        """The text that became certain with this token; often empty, never half a character."""
        ...

    def flush(self) -> str:
        """What is still pending at the end of the sequence; bytes of half a character as U+FFFD."""
        ...


class ByteDetokenizer:
    """For tokenizers whose tokens are bytes: exact, and constant time for each token."""

    def __init__(self, token_bytes: TokenBytes, skipped_ids: frozenset[int]) -> None:
        self._token_bytes = token_bytes
        self._skipped_ids = skipped_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        if token_id in self._skipped_ids:
            return ""
        return self._utf8.decode(self._token_bytes[token_id])

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDetokenizer:
    """For any other tokenizer: decodes a short window twice and gives out the difference.

    The window starts at the last point where text was certain, so that decoders that look at
    neighbours (joining words, dropping a first space) see some.
    """

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        skipped_ids: frozenset[int],
        prompt_token_ids: Sequence[int],
    ) -> None:
        self._decode = decode
        self._skipped_ids = skipped_ids
        context = [i for i in prompt_token_ids[-_CONTEXT_LEN:] if i not in skipped_ids]
        self._window = context
        self._num_known = len(context)
        """Tokens at the window's start whose text has been given out."""

    def push(self, token_id: int) -> str:
        if token_id in self._skipped_ids:
            return ""
        self._window.append(token_id)
        return self._advance(final=False)

    def flush(self) -> str:
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        known = self._decode(self._window[: self._num_known])
        text = self._decode(self._window)
        num_pending = len(self._window) - self._num_known
        unfinished = text.endswith(_REPLACEMENT) and num_pending < _MAX_PENDING_LEN
        if len(text) <= len(known) or (unfinished and not final):
            return ""
        self._window = self._window[self._num_known :]
        self._num_known = len(self._window)
        return text[len(known) :]
