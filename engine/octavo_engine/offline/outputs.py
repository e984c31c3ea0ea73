"""What offline generation gives back: plain objects in the shape that users of `LLM` know."""

from dataclasses import dataclass, field

from octavo_engine.messages import FinishReason


@dataclass(frozen=True, slots=True)
class Logprob:
    logprob: float
    rank: int
    """1 is the most likely token of the vocabulary."""
    decoded_token: str
    """Its text; a part of a character is written as its bytes, `bytes:\\xf0\\x9f`."""


@dataclass(slots=True)
class CompletionOutput:
    """One generated sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, Logprob]] | None = None
    """For each token the chosen one and the alternatives asked for, by id; None when not asked."""
    cumulative_logprob: float | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    """Why the sequence failed, when `finish_reason` is `error`."""


@dataclass(slots=True)
class RequestOutput:
    """One prompt with its `n` sequences."""

    request_id: str
    prompt: str | None
    """The text, when the prompt was given as one."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens served from the prefix cache."""

    @property
    def finished(self) -> bool:
        return all(output.finish_reason is not None for output in self.outputs)
