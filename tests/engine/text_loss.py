"""How well a runner predicts a fixed text."""

import torch
from tests.engine.runner_driver import Job, run_jobs

from octavo_engine.batch import Runner
from octavo_engine.sampling_params import SamplingParams

TEXT = (
    "The lighthouse stood at the end of a long spit of sand. Every evening the keeper climbed its "
    "hundred and twelve steps, wound the clockwork and lit the lamp. In summer it was hardly "
    "needed; in winter ships from the north waited for it. One night the lamp did not burn. The "
    "keeper had fallen ill, and his daughter, who was eleven, climbed the stairs alone. She had "
    "watched her father often enough to know what to do: trim the wick, fill the tank, open the "
    "shutter, and count slowly to ten between one turn of the lens and the next."
)


def token_logprobs(runner: Runner, token_ids: list[int]) -> torch.Tensor:
    """Of each token given those before it, in chunks, so that most keys come from pages."""
    params = SamplingParams(temperature=0.0, prompt_logprobs=0)
    (outcome,) = run_jobs(runner, [Job(token_ids, 1, params)], chunk=20)
    found = [
        position.chosen.logprob
        for result in outcome.results
        for part in result.prompt_logprobs
        for position in part.positions
    ]
    assert len(found) == len(token_ids) - 1
    return torch.tensor(found)
