"""How far the start is: the stage, its share of the whole in percent, the seconds each stage took.

Reported by the loading thread, read by `/startupz`; the caller gives the clock's readings.
"""

from octavo_engine.progress import STAGES, Stage

_SPANS: dict[Stage, tuple[int, int]] = {
    "tokenizer": (0, 5),
    "weights": (5, 75),
    "memory": (75, 85),
    "graphs": (85, 100),
}
"""Percent at the begin and the end of a stage; a rough guess of how long each takes."""


class StartupProgress:
    def __init__(self) -> None:
        self.stage: Stage | None = None
        self.percent = 0
        self.stage_seconds: dict[Stage, float] = {}
        """Of the stages that are over."""
        self._began_s = 0.0

    def report(self, stage: Stage, share: float, now_s: float) -> None:
        """`share` of the stage is done, 0 to 1. Stages come in order; some may be left out."""
        if stage != self.stage:
            self._end_stage(now_s)
            self.stage, self._began_s = stage, now_s
        low, high = _SPANS[stage]
        self.percent = max(self.percent, low + int((high - low) * share))

    def finish(self, now_s: float) -> None:
        self._end_stage(now_s)
        self.stage, self.percent = None, 100

    def rounded_seconds(self) -> dict[Stage, float]:
        """Of the stages that are over, to the millisecond: for people and logs."""
        return {stage: round(seconds, 3) for stage, seconds in self.stage_seconds.items()}

    def _end_stage(self, now_s: float) -> None:
        if self.stage is not None:
            self.stage_seconds[self.stage] = now_s - self._began_s


assert tuple(_SPANS) == STAGES
