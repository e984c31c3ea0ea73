"""Where the time of the core's steps goes: sums that only grow. Keeps no clock."""

from bisect import bisect_left

from octavo_engine.batch import Batch, StepResult
from octavo_engine.messages import STEP_TOKENS_BOUNDS, StepStats


class StepLedger:
    """Filled by the core's thread; `stats` may be called by another."""

    def __init__(self) -> None:
        self.schedule_s = 0.0
        self.launch_s = 0.0
        self.wait_s = 0.0
        self.commit_s = 0.0
        self._device_s = 0.0
        self._host_gap_s = 0.0
        self._num_rows = 0
        self._num_padded_rows = 0
        self._num_graph_steps = 0
        self._num_tokens = 0
        self._tokens_histogram = [0] * (len(STEP_TOKENS_BOUNDS) + 1)
        self._last_end_s: float | None = None

    def note_launch(self, batch: Batch) -> None:
        num_tokens = sum(work.num_tokens for work in batch.work)
        self._num_rows += len(batch.work)
        self._num_tokens += num_tokens
        self._tokens_histogram[bisect_left(STEP_TOKENS_BOUNDS, num_tokens)] += 1

    def note_end(self, result: StepResult, now_s: float) -> None:
        """`now_s`: when the core got the result. What lies between two ends beyond the time that
        the device took is the host's: the device waited for its next step."""
        self._device_s += result.duration_s
        self._num_padded_rows += result.num_padded_rows
        self._num_graph_steps += result.is_graph
        if self._last_end_s is not None and result.duration_s > 0:
            self._host_gap_s += max(0.0, now_s - self._last_end_s - result.duration_s)
        self._last_end_s = now_s

    def note_idle(self) -> None:
        """There is no work: the time until the next step is nobody's gap."""
        self._last_end_s = None

    def stats(self) -> StepStats:
        return StepStats(
            schedule_s=self.schedule_s,
            launch_s=self.launch_s,
            wait_s=self.wait_s,
            commit_s=self.commit_s,
            device_s=self._device_s,
            host_gap_s=self._host_gap_s,
            num_rows=self._num_rows,
            num_padded_rows=self._num_padded_rows,
            num_graph_steps=self._num_graph_steps,
            num_tokens=self._num_tokens,
            tokens_histogram=tuple(self._tokens_histogram),
        )
