"""Reads a fixture's reference.json and compares a runner with it.

Runners report logprobs; against logits they are right up to one constant at each position, so the
comparison is of differences to the likeliest token.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.engine.runner_driver import Job, run_jobs

from octavo_engine.batch import Runner
from octavo_engine.sampling_params import SamplingParams

NUM_TOP = 20


@dataclass(frozen=True)
class Comparison:
    max_logit_error: float
    """Over the reference's top 20 at the last position of the prompt."""
    num_greedy: int
    """Generated tokens equal to the reference's before the first that differs."""
    num_comparable: int
    """Tokens before the reference's first near tie: those must be equal."""


def read_reference(folder: Path) -> dict[str, Any]:
    reference: dict[str, Any] = json.loads((folder / "reference.json").read_text())
    return reference


def prompts_of(reference: dict[str, Any]) -> list[dict[str, Any]]:
    """With rounded activations where the checkpoint asks for that."""
    prompts: list[dict[str, Any]] = reference.get("full", reference["weight_only"])["prompts"]
    return prompts


def compare(runner: Runner, prompts: list[dict[str, Any]], tolerance: float) -> list[Comparison]:
    params = SamplingParams(temperature=0.0, logprobs=2 * NUM_TOP)
    jobs = [Job(prompt["prompt"], len(prompt["greedy_ids"]), params) for prompt in prompts]
    outcomes = run_jobs(runner, jobs)
    found = []
    for row, (prompt, outcome) in enumerate(zip(prompts, outcomes, strict=True)):
        sampled = [token for result in outcome.results for token in result.sampled]
        first = next(token for token in sampled if token.row == row)
        logprobs = {top.token_id: top.logprob for top in first.logprobs.top}
        found.append(
            Comparison(
                max_logit_error=_max_error(prompt, logprobs),
                num_greedy=_num_equal(outcome.token_ids, prompt["greedy_ids"]),
                num_comparable=_num_clear(prompt["greedy_margins"], tolerance),
            )
        )
    return found


def _max_error(prompt: dict[str, Any], logprobs: dict[int, float]) -> float:
    """Infinite when one of the reference's top 20 is not even among our top 40."""
    ids, logits = prompt["top20_ids"], prompt["top20_logits"]
    if not set(ids) <= logprobs.keys():
        return float("inf")
    return max(
        abs((logprobs[token_id] - logprobs[ids[0]]) - (logit - logits[0]))
        for token_id, logit in zip(ids, logits, strict=True)
    )


def _num_equal(ours: list[int], theirs: list[int]) -> int:
    pairs = zip(ours, theirs, strict=True)
    return next((idx for idx, (one, other) in enumerate(pairs) if one != other), len(theirs))


def _num_clear(margins: list[float], tolerance: float) -> int:
    return next((idx for idx, margin in enumerate(margins) if margin < tolerance), len(margins))
