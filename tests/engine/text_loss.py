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
    "shutter, and count slowly to ten between one turn of the lens and the next. "
    "The clockwork was the hard part. It hung on a chain as thick as her wrist, and the weight at "
    "its end had to be wound up from the bottom of the tower every four hours. She could not turn "
    "the crank by herself, so she tied a rope to it, led the rope over the rail and let herself "
    "down on the other side until her feet touched the landing below. Then she climbed up and did "
    "it again. By midnight she had counted forty journeys, and the lens was turning as evenly as "
    "it had ever turned. "
    "Out at sea the mate of a small steamer was looking at his watch. The chart said that the "
    "light showed twice in every twenty seconds, and he had been told as a boy never to trust a "
    "light that he had not timed. He timed it now. Nineteen seconds, then twenty, then twenty-one. "
    "Somebody, he said to the captain, is counting by hand tonight. The captain went out on the "
    "bridge with his pipe and watched it for a while. He had sailed this coast for thirty years "
    "and knew every rock of it by name, but in fog names are of little use. He ordered the helm "
    "to be put over, and the ship passed the spit with a mile of water to spare. "
    "In the morning the wind dropped and the doctor rowed across from the village. He found the "
    "keeper asleep with a cold forehead, and the girl asleep on the stairs with the rope still "
    "around her waist. On the table lay the book in which each night of the lamp was written "
    "down, the hour of lighting, the oil that was used, the weather and the ships. Under the "
    "date stood one line in pencil: lit at six, two gallons, fog, one ship, father is better. "
    "The doctor read it twice. Then he put more wood on the fire, hung his wet coat over a chair "
    "and sat down to wait until they woke. Outside the gulls were walking up and down on the sand "
    "as if nothing had happened, and the tide was carrying away the last of the fog. "
    "Years later, when the lamp had long been replaced by one that needed nobody, people still "
    "came to see the book. A teacher brought her class every spring, and the children were "
    "allowed to turn the crank, four of them at a time. None of them ever managed to lift the "
    "weight by more than a few steps of the stairs. They asked how one girl could have done it, "
    "and the guide always gave the same answer: she did not lift it, she let something heavier "
    "fall, and she was the only heavy thing at hand."
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
