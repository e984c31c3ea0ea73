"""The progress bar of offline generation: what is done, and how many tokens a second come out."""

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class GenerationProgress:
    """A context manager; the bar goes to standard error, and nowhere when it is switched off."""

    def __init__(self, total: int, *, is_shown: bool, num_done: int = 0) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.1f} tokens/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not is_shown,
        )
        self._task = self._progress.add_task(
            "Generating", total=total, completed=num_done, rate=0.0
        )
        self._start_s = time.monotonic()
        self._num_tokens = 0

    @property
    def tokens_per_s(self) -> float:
        return self._num_tokens / max(time.monotonic() - self._start_s, 1e-9)

    def __enter__(self) -> "GenerationProgress":
        self._start_s = time.monotonic()
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.update(self._task, rate=self.tokens_per_s)
        self._progress.stop()

    def add_tokens(self, num_tokens: int) -> None:
        self._num_tokens += num_tokens
        self._progress.update(self._task, rate=self.tokens_per_s)

    def add_done(self) -> None:
        self._progress.advance(self._task)
