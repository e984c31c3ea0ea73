"""Whether what a runner gives in bfloat16 is as good as what the reference gives in it.

Rounding turns near ties, so tokens may differ. Both sides are judged on the runner's tokens, which
makes every position comparable.
"""

from typing import Any

import torch
from tests.engine.runner_driver import Outcome

from octavo_engine.batch import SampledToken
from octavo_engine.sampling_params import SamplingParams

TOP = 5
WITH_ALTERNATIVES = SamplingParams(temperature=0.0, logprobs=TOP)


def assert_logprob_close(reference: Any, prompt: list[int], row: int, outcome: Outcome) -> None:
    """At the first token that differs, each side's choice is among the other's likeliest.
    outcome: of the job of this row, with WITH_ALTERNATIVES."""
    tokens = outcome.token_ids
    logprobs = forced_logprobs(reference, prompt, tokens)
    theirs = logprobs.argmax(-1).tolist()
    parting = next((i for i in range(len(tokens)) if tokens[i] != theirs[i]), None)
    if parting is None:
        return
    assert tokens[parting] in logprobs[parting].topk(TOP).indices.tolist()
    assert theirs[parting] in _likeliest(_sampled(row, outcome)[parting])


def logprob_errors(
    exact: Any, rounded: Any, prompt: list[int], row: int, outcome: Outcome
) -> tuple[float, float]:
    """Mean error of the runner's likeliest logprobs at each token, and of `rounded`'s for the same,
    against the float32 model `exact`."""
    sampled = _sampled(row, outcome)
    ids = torch.tensor([list(_likeliest(token)) for token in sampled])
    ours = torch.tensor([list(_likeliest(token).values()) for token in sampled])
    truth = forced_logprobs(exact, prompt, outcome.token_ids).gather(1, ids)
    theirs = forced_logprobs(rounded, prompt, outcome.token_ids).gather(1, ids)
    return float((ours - truth).abs().mean()), float((theirs - truth).abs().mean())


def forced_logprobs(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocabulary]: of each token given those before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def _sampled(row: int, outcome: Outcome) -> list[SampledToken]:
    return [token for result in outcome.results for token in result.sampled if token.row == row]


def _likeliest(token: SampledToken) -> dict[int, float]:
    assert token.logprobs is not None
    return {top.token_id: top.logprob for top in token.logprobs.top[:TOP]}
