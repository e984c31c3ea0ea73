"""The bytes behind each token id, for tokenizers whose tokens are pieces of UTF-8.

Two kinds of decoder are such: byte-level BPE (GPT-2, Llama 3, Qwen), where each character of a
token stands for one byte, and SentencePiece with byte fallback (Llama 2, Mistral, Gemma). Any other
decoder rewrites neighbouring tokens together and has no table here.
"""

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HFTokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_SPACE_MARK = "▁"


def byte_level_alphabet() -> dict[str, int]:
    """GPT-2's one printable character for each byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


def token_text(token_bytes: bytes) -> str:
    """A token as text; one that is no whole character is written as escaped bytes."""
    try:
        return token_bytes.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token_bytes)


class TokenBytes:
    """Maps token ids to bytes. Made once for a tokenizer; filled as ids are asked for."""

    def __init__(self, backend: "HFTokenizer", *, byte_level: bool) -> None:
        self._backend = backend
        self._alphabet = byte_level_alphabet() if byte_level else None
        self._known: dict[int, bytes] = {}

    @classmethod
    def for_tokenizer(cls, backend: "HFTokenizer") -> "TokenBytes | None":
        """None when the tokenizer's decoder is of neither kind."""
        kinds = decoder_kinds(backend)
        if kinds == ["ByteLevel"]:
            return cls(backend, byte_level=True)
        if "ByteFallback" in kinds and set(kinds) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
            return cls(backend, byte_level=False)
        return None

    def __getitem__(self, token_id: int) -> bytes:
        """Empty for an id that the tokenizer does not have (models pad their vocabulary)."""
        known = self._known.get(token_id)
        if known is None:
            token = self._backend.id_to_token(token_id)
            known = self._known[token_id] = b"" if token is None else self._to_bytes(token)
        return known

    def _to_bytes(self, token: str) -> bytes:
        if self._alphabet is None:
            byte = _BYTE_TOKEN.fullmatch(token)
            if byte:
                return bytes.fromhex(byte[1])
            return token.replace(_SPACE_MARK, " ").encode()
        values = [self._alphabet.get(char) for char in token]
        # An added token may hold characters outside the alphabet and then stands for itself.
        if None in values:
            return token.encode()
        return bytes(value for value in values if value is not None)


def decoder_kinds(backend: "HFTokenizer") -> list[str]:
    """Names of the decoder's steps, a sequence flattened; empty without a decoder."""
    if backend.decoder is None:
        return []
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__())
    steps = state["decoders"] if state["type"] == "Sequence" else [state]
    return [step["type"] for step in steps]
