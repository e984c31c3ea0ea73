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
    at = parting(tokens, theirs)
    if at is None:
        return
    assert tokens[at] in logprobs[at].topk(TOP).indices.tolist()
    assert theirs[at] in likeliest(sampled(row, outcome)[at])


def logprob_errors(
    exact: Any, rounded: Any, prompt: list[int], row: int, outcome: Outcome
) -> tuple[float, float]:
    """Mean error of the runner's likeliest logprobs at each token, and of `rounded`'s for the same,
    against the float32 model `exact`."""
    tokens = sampled(row, outcome)
    ids = torch.tensor([list(likeliest(token)) for token in tokens])
    ours = torch.tensor([list(likeliest(token).values()) for token in tokens])
    truth = forced_logprobs(exact, prompt, outcome.token_ids).gather(1, ids)
    theirs = forced_logprobs(rounded, prompt, outcome.token_ids).gather(1, ids)
    return float((ours - truth).abs().mean()), float((theirs - truth).abs().mean())


def forced_logprobs(model: Any, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """[len(tokens), vocabulary]: of each token given those before it."""
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return logits.float().log_softmax(-1)


def parting(one: list[int], other: list[int]) -> int | None:
    """Where two rows of tokens first differ; None: nowhere."""
    pairs = enumerate(zip(one, other, strict=True))
    return next((at for at, (a, b) in pairs if a != b), None)


def sampled(row: int, outcome: Outcome) -> list[SampledToken]:
    return [token for result in outcome.results for token in result.sampled if token.row == row]


def likeliest(token: SampledToken, count: int = TOP) -> dict[int, float]:
    """Logprobs by id."""
    assert token.logprobs is not None
    return {top.token_id: top.logprob for top in token.logprobs.top[:count]}
