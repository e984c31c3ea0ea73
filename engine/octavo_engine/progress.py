"""How a start tells how far it is: stages in their order, each with its share that is done."""

from collections.abc import Callable
from typing import Literal, get_args

Stage = Literal["tokenizer", "weights", "memory", "graphs"]
"""memory: measuring what a step takes and taking the rest for pages. graphs: warming, capturing."""

STAGES: tuple[Stage, ...] = get_args(Stage)

Report = Callable[[Stage, float], None]
"""Called from the loading thread with the stage and its share done, 0 to 1."""


def silent(stage: Stage, share: float) -> None:
    """For those who do not wait."""
