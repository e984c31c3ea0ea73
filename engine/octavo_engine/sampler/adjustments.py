"""What one request changes in its logits, prepared once at admission and asked for at each step.

How the changes are applied, and in which order, is the kernels' part (`LogitChanges`).
"""

from dataclasses import dataclass

import torch

from octavo_engine.sampling_params import SamplingParams
from octavo_kernels import ANY_TOKEN, ForbiddenEndings, LogitChanges


@dataclass(frozen=True)
class Adjustments:
    allowed: torch.Tensor | None
    """[ceil(vocab_size / 32)] int32: a bit for each of the allowed ids."""
    bad_words: ForbiddenEndings | None
    min_tokens: int
    ending_ids: torch.Tensor | None
    """[E] int32: end the sequence; not drawn before min_tokens."""
    bias_ids: torch.Tensor | None
    """[B] int32."""
    biases: torch.Tensor | None
    """[B] float32."""
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float

    @property
    def has_penalties(self) -> bool:
        penalties = (self.repetition_penalty, self.presence_penalty, self.frequency_penalty)
        return penalties != (1.0, 0.0, 0.0)

    def after(self, history: torch.Tensor, num_prompt_tokens: int) -> LogitChanges:
        """For the token behind history[n] int32."""
        may_end = len(history) - num_prompt_tokens >= self.min_tokens
        return LogitChanges(
            history=history,
            num_prompt_tokens=num_prompt_tokens,
            allowed=self.allowed,
            forbidden_ids=None if may_end else self.ending_ids,
            endings=self.bad_words,
            bias_ids=self.bias_ids,
            biases=self.biases,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
        )


def prepare(params: SamplingParams, vocab_size: int, device: torch.device) -> Adjustments | None:
    """None when nothing changes. Raises ValueError naming an id outside the vocabulary."""
    ending = [*params.stop_token_ids, *([] if params.ignore_eos else params.eos_token_ids)]
    needs_ending = params.min_tokens > 0 and bool(ending)
    bias = params.logit_bias or None

    def ids(values: list[int], field: str) -> torch.Tensor:
        for value in values:
            if not 0 <= value < vocab_size:
                raise ValueError(f"{field}: id {value} is not in [0, {vocab_size})")
        return torch.tensor(values, dtype=torch.int32, device=device)

    allowed = None
    if params.allowed_token_ids is not None:
        allowed = _packed(ids(params.allowed_token_ids, "allowed_token_ids"), vocab_size)
    words = params.bad_words_token_ids
    adjustments = Adjustments(
        allowed=allowed,
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
    changes = (adjustments.allowed, adjustments.bad_words, adjustments.ending_ids, bias)
    is_neutral = all(change is None for change in changes) and not adjustments.has_penalties
    return None if is_neutral else adjustments


def _packed(ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """[ceil(vocab_size / 32)] int32 with the bits of these ids set, lowest first."""
    bits = torch.zeros(-(-vocab_size // 32) * 32, dtype=torch.uint8, device=ids.device)
    bits[ids] = 1
    shifts = torch.arange(8, dtype=torch.uint8, device=ids.device)
    return (bits.view(-1, 8) << shifts).sum(dim=1, dtype=torch.uint8).view(torch.int32)


def _bad_words(words: list[list[int]], vocab_size: int, device: torch.device) -> ForbiddenEndings:
    for word in words:
        if not word or not all(0 <= token < vocab_size for token in word):
            raise ValueError(f"bad_words_token_ids: {word} is empty or outside [0, {vocab_size})")
    prefix_len = max(len(word) for word in words) - 1
    prefixes = [[ANY_TOKEN] * (prefix_len + 1 - len(word)) + word[:-1] for word in words]
    return ForbiddenEndings(
        prefixes=torch.tensor(prefixes, dtype=torch.int32, device=device).view(
            len(words), prefix_len
        ),
        last_ids=torch.tensor([word[-1] for word in words], dtype=torch.int32, device=device),
    )
