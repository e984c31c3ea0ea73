"""The waiting sequences, most urgent first.

A sequence's key never changes: arrival plus priority times the ageing interval. Waiting one
interval is therefore worth one level of priority, first come is first served within a level, and
nothing waits for ever behind a stream of more urgent arrivals.
"""

import heapq
from collections.abc import Iterator

from octavo_engine.scheduling.request import Sequence, SequenceState


def order_key(arrival_s: float, priority: int, ageing_s: float, serial: int) -> tuple[float, int]:
    """`serial` grows with each sequence, so that no two keys are equal."""
    return arrival_s + priority * ageing_s, serial


class WaitingQueue:
    """A heap; a sequence that ended while it waited is dropped when it comes up."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, int], Sequence]] = []
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def __iter__(self) -> Iterator[Sequence]:
        return (seq for _, seq in self._heap if seq.state is SequenceState.WAITING)

    def push(self, seq: Sequence) -> None:
        seq.state = SequenceState.WAITING
        heapq.heappush(self._heap, (seq.key, seq))
        self._num_waiting += 1

    def peek(self) -> Sequence | None:
        while self._heap and self._heap[0][1].state is not SequenceState.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1] if self._heap else None

    def pop(self) -> Sequence:
        seq = self.peek()
        assert seq is not None
        heapq.heappop(self._heap)
        self._num_waiting -= 1
        return seq

    def note_ended(self) -> None:
        """A waiting sequence has just left the WAITING state by ending."""
        self._num_waiting -= 1
        if len(self._heap) > 64 and len(self._heap) > 2 * self._num_waiting:
            self._heap = [entry for entry in self._heap if entry[1].state is SequenceState.WAITING]
            heapq.heapify(self._heap)
