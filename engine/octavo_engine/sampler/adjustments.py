"""What one request changes in its logits: masks, biases and penalties, prepared once at admission.

Applied in this order: allowed ids, bad words, minimum length, bias, repetition, then presence and
frequency.
"""

from dataclasses import dataclass

import torch
from torch.nn import functional

from octavo_engine.sampling_params import SamplingParams

ANY_TOKEN = -1
NO_TOKEN = -2


@dataclass(frozen=True)
class BadWords:
    prefixes: torch.Tensor
    """[W, L]: the tokens before a word's last one, filled up with ANY_TOKEN on the left."""
    last_ids: torch.Tensor
    """[W]."""


@dataclass(frozen=True)
class Adjustments:
    forbidden: torch.Tensor | None
    """[vocab_size] bool: everything but the allowed ids."""
    bad_words: BadWords | None
    min_tokens: int
    ending_ids: torch.Tensor | None
    """Ids that end the sequence; not drawn before min_tokens."""
    bias_ids: torch.Tensor | None
    biases: torch.Tensor | None
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1.0 or self._counts_output

    @property
    def _counts_output(self) -> bool:
        return self.presence_penalty != 0.0 or self.frequency_penalty != 0.0

    def apply(self, logits: torch.Tensor, history: torch.Tensor, num_prompt_tokens: int) -> None:
        """Changes logits[vocab_size] in place. history: all tokens before the one to sample."""
        if self.forbidden is not None:
            logits.masked_fill_(self.forbidden, -torch.inf)
        if self.bad_words is not None:
            _forbid_bad_words(logits, history[num_prompt_tokens:], self.bad_words)
        if self.ending_ids is not None and len(history) - num_prompt_tokens < self.min_tokens:
            logits[self.ending_ids] = -torch.inf
        if self.bias_ids is not None and self.biases is not None:
            logits[self.bias_ids] += self.biases
        if self.has_penalties:
            self._penalise(logits, history.long(), num_prompt_tokens)

    def _penalise(self, logits: torch.Tensor, history: torch.Tensor, num_prompt: int) -> None:
        if self.repetition_penalty != 1.0:
            seen = logits[history]
            penalty = self.repetition_penalty
            logits[history] = torch.where(seen > 0, seen / penalty, seen * penalty)
        if self._counts_output:
            output = history[num_prompt:]
            counts = torch.zeros_like(logits)
            counts.index_add_(0, output, torch.ones_like(output, dtype=counts.dtype))
            logits -= self.frequency_penalty * counts
            logits -= self.presence_penalty * (counts > 0)


def prepare(params: SamplingParams, vocab_size: int, device: torch.device) -> Adjustments | None:
    """None when nothing changes. Raises ValueError naming an id outside the vocabulary."""
    ending = [*params.stop_token_ids, *([] if params.ignore_eos else params.eos_token_ids)]
    needs_ending = params.min_tokens > 0 and bool(ending)
    bias = params.logit_bias or None

    def ids(values: list[int], field: str) -> torch.Tensor:
        for value in values:
            if not 0 <= value < vocab_size:
                raise ValueError(f"{field}: id {value} is not in [0, {vocab_size})")
        return torch.tensor(values, dtype=torch.long, device=device)

    forbidden = None
    if params.allowed_token_ids is not None:
        allowed = ids(params.allowed_token_ids, "allowed_token_ids")
        forbidden = torch.ones(vocab_size, dtype=torch.bool, device=device)
        forbidden[allowed] = False
    words = params.bad_words_token_ids
    adjustments = Adjustments(
        forbidden=forbidden,
        bad_words=_bad_words(words, vocab_size, device) if words else None,
        min_tokens=params.min_tokens if needs_ending else 0,
        ending_ids=ids(ending, "stop_token_ids") if needs_ending else None,
        bias_ids=None if bias is None else ids(list(bias), "logit_bias"),
        biases=None
        if bias is None
        else torch.tensor(list(bias.values()), dtype=torch.float32, device=device),
        repetition_penalty=params.repetition_penalty,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
    )
    changes = (adjustments.forbidden, adjustments.bad_words, adjustments.ending_ids, bias)
    is_neutral = all(change is None for change in changes) and not adjustments.has_penalties
    return None if is_neutral else adjustments


def _bad_words(words: list[list[int]], vocab_size: int, device: torch.device) -> BadWords:
    for word in words:
        if not word or not all(0 <= token < vocab_size for token in word):
            raise ValueError(f"bad_words_token_ids: {word} is empty or outside [0, {vocab_size})")
    prefix_len = max(len(word) for word in words) - 1
    prefixes = [[ANY_TOKEN] * (prefix_len + 1 - len(word)) + word[:-1] for word in words]
    return BadWords(
        prefixes=torch.tensor(prefixes, dtype=torch.long, device=device).view(
            len(words), prefix_len
        ),
        last_ids=torch.tensor([word[-1] for word in words], device=device),
    )


def _forbid_bad_words(logits: torch.Tensor, output: torch.Tensor, words: BadWords) -> None:
    """Forbids the last token of each word whose other tokens have just been generated."""
    prefix_len = words.prefixes.shape[1]
    recent = output[max(0, len(output) - prefix_len) :].long()
    recent = functional.pad(recent, (prefix_len - len(recent), 0), value=NO_TOKEN)
    matches = ((words.prefixes == recent) | (words.prefixes == ANY_TOKEN)).all(dim=1)
    penalty = torch.zeros_like(words.last_ids, dtype=logits.dtype)
    logits.index_add_(0, words.last_ids, penalty.masked_fill(matches, -torch.inf))
