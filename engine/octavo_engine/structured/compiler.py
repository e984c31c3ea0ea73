"""Compiled grammars of one model's vocabulary, and a sequence's place in one.

Compiling costs milliseconds to seconds and drops the interpreter lock; the limits here keep any
grammar's compilation and masks bounded. All methods may be called from several threads. Knows no
HTTP, no torch and no scheduler.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from octavo_engine.errors import RequestError

if TYPE_CHECKING:
    from octavo_engine.text.tokenizer import Tokenizer

_MAX_CACHED = 256
"""Two of the largest requests: each strict function is compiled by itself, too."""
_MAX_CACHED_CHARS = 8 * 2**20
_MAX_LEXER_STATES = 50_000
"""Of 1 to 2 kB each."""
_MAX_ERROR_CHARS = 300


class GrammarCompiler:
    """Compiles grammars and keeps the latest, since clients use one for many requests."""

    def __init__(self, tokenizer: "Callable[[], Tokenizer]") -> None:
        """`tokenizer` is called once, by the first request that needs it."""
        self._load = tokenizer
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._load_lock = threading.Lock()

    @property
    def knows_words(self) -> bool:
        return self._vocabulary is not None

    def learn_words(self) -> None:
        """What the first grammar would else have to wait for: the vocabulary as the masks need it,
        seconds for a large one. Raises ValueError for a model whose texts have no end."""
        self._words()

    def check(self, grammar: str, param: str) -> None:
        """Compiles a grammar and looks at its first step.

        Raises `RequestError` naming the cause: no grammar, too costly, or no text satisfies it.
        """
        try:
            self._prototype(grammar)
        except ValueError as error:
            raise RequestError(f"{param}: {error}", param) from error

    def matcher(self, grammar: str) -> "Matcher":
        """At the start of a sequence. Raises ValueError with the cause, as `check` does."""
        prototype = self._prototype(grammar)
        words = self._words()
        num_words = -(-words.vocab_size // 32)
        return Matcher(prototype.deep_copy(), frozenset(words.eos_tokens), num_words)

    def _prototype(self, grammar: str) -> LLMatcher:
        with self._lock:
            known = self._compiled.get(grammar)
            if known is not None:
                self._compiled.move_to_end(grammar)
                return known
        compiled = self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = compiled
            while self._is_over_full() and len(self._compiled) > 1:
                self._compiled.popitem(last=False)
        return compiled

    def _is_over_full(self) -> bool:
        num_chars = sum(map(len, self._compiled))
        return len(self._compiled) > _MAX_CACHED or num_chars > _MAX_CACHED_CHARS

    def _compile(self, grammar: str) -> LLMatcher:
        limits = LLParserLimits(max_lexer_states=_MAX_LEXER_STATES, verbose_errors=False)
        matcher = LLMatcher(self._words(), grammar, log_level=0, limits=limits)
        _raise_error(matcher)
        first = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            raise ValueError(_error_of(matcher))
        if not first.any() or matcher.is_stopped():
            raise ValueError("no text satisfies it")
        return matcher

    def _words(self) -> LLTokenizer:
        with self._load_lock:
            if self._vocabulary is None:
                tokenizer = self._load()
                if not tokenizer.eos_token_ids:
                    raise ValueError("the model has no end-of-sequence token to end the text with")
                fast: Any = tokenizer.hf_tokenizer  # every one that we load is
                from llguidance.hf import from_tokenizer  # imports transformers: seconds

                self._vocabulary = from_tokenizer(fast, eos_token=tokenizer.eos_token_ids)
            return self._vocabulary


class Matcher:
    """Where one sequence stands in its grammar."""

    def __init__(
        self, matcher: LLMatcher, eos_token_ids: frozenset[int], num_mask_words: int
    ) -> None:
        self.native = matcher
        self.num_mask_words = num_mask_words
        """32 tokens each."""
        self.num_consumed = 0
        self.has_ended = False
        """An end-of-sequence token has been taken."""
        self._eos_token_ids = eos_token_ids

    def advance(self, token_ids: Sequence[int]) -> None:
        """Takes what was generated. Raises ValueError for tokens that the grammar forbids."""
        self.num_consumed += len(token_ids)
        for token_id in token_ids:
            if self.has_ended:
                return  # a step in flight behind the end; nobody reads its token
            self.native.consume_token(token_id)
            _raise_error(self.native)
            self.has_ended = token_id in self._eos_token_ids

    def error(self) -> str | None:
        return _error_of(self.native) if self.native.is_error() else None


def fill_masks(matchers: Sequence[Matcher]) -> NDArray[np.int32]:
    """[matchers, words]: a bit for each token id, lowest first; set where it may come next.

    A matcher whose step is too complex is then in error.
    """
    num_words = matchers[0].num_mask_words
    masks = np.zeros((len(matchers), num_words), dtype=np.int32)
    if len(matchers) == 1:
        matchers[0].native.unsafe_compute_mask_ptr(masks.ctypes.data, masks.nbytes)
    else:
        LLExecutor().unsafe_compute_mask_ptr(
            [(matcher.native, idx) for idx, matcher in enumerate(matchers)],
            masks.ctypes.data,
            num_words * masks.itemsize,
            len(matchers),
        )
    return masks


def _raise_error(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise ValueError(_error_of(matcher))


def _error_of(matcher: LLMatcher) -> str:
    text = matcher.get_error().partition("<non-verbose/>")[0].strip()
    if text.startswith("NoExtension"):
        return "no text satisfies it"
    return text if len(text) <= _MAX_ERROR_CHARS else text[: _MAX_ERROR_CHARS - 3] + "..."
