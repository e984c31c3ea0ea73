"""How a sequence's tokens are chosen and when it ends: plain data with its own checks. No torch."""

import math
from typing import Literal

import msgspec

from octavo_engine.errors import RequestError

MAX_N = 128
MAX_LOGPROBS = 64
MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_TOKENS = 64
MAX_LOGIT_BIAS = 4096

_INT64_MAX = 2**63 - 1


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved sampling parameters. Each field's neutral value leaves the model's logits alone."""

    n: int = 1
    max_tokens: int | None = 16
    """None: as many as the context holds. 0: the prompt is computed, for its logprobs."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 (and what lies below 1e-5) is greedy: the most likely token, the lowest id on ties."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all tokens; 1 is greedy."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words_token_ids: list[list[int]] | None = None
    seed: int | None = None
    stop: list[str] = []
    """Stop strings; matched by the server, which has the text."""
    stop_token_ids: list[int] = []
    eos_token_ids: list[int] = []
    """The model's own; filled in by the server."""
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    grammar: str | None = None
    """What each sequence's text must follow, in the form of `structured.grammars`; the text ends
    where the grammar does."""
    logprobs: int | None = None
    """Number of alternatives a token; 0: only the chosen token's logprob; None: none."""
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """raw: of the model's logits; processed: after penalties, bias and temperature."""

    def verify(self, vocab_size: int) -> None:
        """Raises RequestError, naming parameter and value, for what no model could follow: values
        out of range, ids outside [0, vocab_size), parameters that contradict each other."""
        self._verify_lengths()
        self._verify_numbers()
        self._verify_stops(vocab_size)
        self._verify_tokens(vocab_size)
        if self.grammar is not None and (self.ignore_eos or self.min_tokens > 0):
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            message = f"{name} would write on behind the end of a structured output or strict call"
            raise RequestError(message, name)

    def _verify_lengths(self) -> None:
        _in_range("n", self.n, 1, MAX_N)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 0, _INT64_MAX)
        _in_range("min_tokens", self.min_tokens, 0, _INT64_MAX)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens ({self.min_tokens}) is above max_tokens ({self.max_tokens})",
                "min_tokens",
            )
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        if self.prompt_logprobs is not None:
            _in_range("prompt_logprobs", self.prompt_logprobs, 0, MAX_LOGPROBS)

    def _verify_numbers(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, above_low=True)
        _in_range("top_k", self.top_k, 0, _INT64_MAX)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above_low=True)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), _INT64_MAX)

    def _verify_stops(self, vocab_size: int) -> None:
        _at_most("stop", len(self.stop), MAX_STOPS)
        for text in self.stop:
            if not text:
                raise RequestError("stop holds an empty string", "stop")
            _at_most("stop", len(text), MAX_STOP_CHARS, "characters")
        _at_most("stop_token_ids", len(self.stop_token_ids), MAX_STOPS)
        _in_vocabulary("stop_token_ids", self.stop_token_ids, vocab_size)
        _in_vocabulary("eos_token_ids", self.eos_token_ids, vocab_size)

    def _verify_tokens(self, vocab_size: int) -> None:
        if self.logit_bias is not None:
            _at_most("logit_bias", len(self.logit_bias), MAX_LOGIT_BIAS)
            _in_vocabulary("logit_bias", list(self.logit_bias), vocab_size)
            for bias in self.logit_bias.values():
                _in_range("logit_bias", bias, -100.0, 100.0)
        if self.allowed_token_ids is not None:
            if not self.allowed_token_ids:
                raise RequestError("allowed_token_ids allows no token at all", "allowed_token_ids")
            _at_most("allowed_token_ids", len(self.allowed_token_ids), vocab_size)
            _in_vocabulary("allowed_token_ids", self.allowed_token_ids, vocab_size)
        if self.bad_words_token_ids is not None:
            self._verify_bad_words(self.bad_words_token_ids, vocab_size)

    def _verify_bad_words(self, bad_words: list[list[int]], vocab_size: int) -> None:
        _at_most("bad_words", len(bad_words), MAX_BAD_WORDS)
        for word in bad_words:
            if not word:
                raise RequestError("bad_words holds a word without tokens", "bad_words")
            _at_most("bad_words", len(word), MAX_BAD_WORD_TOKENS, "tokens in a word")
            _in_vocabulary("bad_words", word, vocab_size)
        if self.allowed_token_ids is not None:
            banned = {word[0] for word in bad_words if len(word) == 1}
            if banned.issuperset(self.allowed_token_ids):
                raise RequestError("bad_words forbids every one of allowed_token_ids", "bad_words")


def resolve_seed(seed: int, index: int) -> int:
    """The seed of a request's sequence `index`, in [0, 2**63): the same on every machine, and
    different for each of the `n`."""
    if index == 0:
        return seed & _INT64_MAX
    # splitmix64: neighbouring seeds and indices come out unrelated.
    mixed = (seed + index * 0x9E3779B97F4A7C15) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (mixed ^ (mixed >> 31)) & _INT64_MAX


def _in_range(name: str, value: float, low: float, high: float, *, above_low: bool = False) -> None:
    is_inside = low < value <= high if above_low else low <= value <= high
    if math.isnan(value) or not is_inside:
        if high >= _INT64_MAX:
            rule = f"{low} or more" if not above_low else f"above {low}"
        else:
            rule = f"above {low} and at most {high}" if above_low else f"from {low} to {high}"
        raise RequestError(f"{name} must be {rule}, got {value}", name)


def _at_most(name: str, count: int, limit: int, what: str = "entries") -> None:
    if count > limit:
        raise RequestError(f"{name} has {count} {what}, at most {limit} are allowed", name)


def _in_vocabulary(name: str, token_ids: list[int], vocab_size: int) -> None:
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{name} holds token id {token_id}, outside the vocabulary [0, {vocab_size})", name
            )
