"""How a sequence's tokens are chosen and when it ends; plain data with its checks. No torch."""

from typing import Literal

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Resolved sampling parameters. A field's neutral value leaves the model's logits alone."""

    n: int = 1
    max_tokens: int | None = 16
    """None: as many as the context holds."""
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy: the most likely token, the lowest id on ties."""
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
    logprobs: int | None = None
    """Number of alternatives a token; 0: only the chosen token's logprob; None: none."""
    prompt_logprobs: int | None = None
    logprobs_mode: Literal["raw", "processed"] = "raw"
    """raw: of the model's logits; processed: after penalties, bias and temperature."""
