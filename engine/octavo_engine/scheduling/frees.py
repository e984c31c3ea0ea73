"""Pages that wait for the steps in flight before they may be given back.

Step N+1 is scheduled while N runs; a page that its owner lets go may still be written by a launched
step, or read by a copy to host memory. It returns to its pool when the last such step has ended.
"""

from collections.abc import Iterator

from octavo_engine.scheduling.blocks import BlockPool


class DeferredFrees:
    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._by_step: dict[int, list[int]] = {}
        self.last_ended = 0
        self.num_pending = 0
        """References that will come back without anyone's doing."""

    def release(self, blocks: list[int], after_step: int) -> None:
        """Gives the pages back now when step `after_step` has ended, else at its end."""
        if after_step <= self.last_ended:
            self._pool.release(blocks)
        elif blocks:
            self._by_step.setdefault(after_step, []).extend(blocks)
            self.num_pending += len(blocks)

    def step_ended(self, step_id: int) -> None:
        self.last_ended = step_id
        blocks = self._by_step.pop(step_id, None)
        if blocks:
            self.num_pending -= len(blocks)
            self._pool.release(blocks)

    def held(self) -> Iterator[int]:
        for blocks in self._by_step.values():
            yield from blocks
