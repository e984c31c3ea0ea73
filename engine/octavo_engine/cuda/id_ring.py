"""Where a step's sampled ids reach the host: pinned memory that the step's last kernel writes.

A step takes a slot; the slot serves another step once its ids have been read. Knows no rows.
"""

import torch

from octavo_engine.cuda.transfer import Mark

NUM_SLOTS = 8
"""More than the steps in flight, so that taking a slot never waits in service."""


class LateIds:
    """Ids of one step: readable when its mark has passed, kept once read."""

    def __init__(self, source: torch.Tensor, ended: Mark) -> None:
        self._source = source
        self._ended = ended
        self._ids: list[int] | None = None

    def read(self) -> list[int]:
        """Waits for the step."""
        if self._ids is None:
            self._ended.wait()
            self._ids = self._source.tolist()
        return self._ids


class IdRing:
    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self.ids = torch.zeros(
            NUM_SLOTS, max_num_rows, dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        self._owners: list[LateIds | None] = [None] * NUM_SLOTS
        self._next = 0

    def take(self) -> int:
        """A slot whose earlier ids are safe: reads them first where nobody has yet."""
        slot = self._next
        self._next = (slot + 1) % NUM_SLOTS
        owner = self._owners[slot]
        if owner is not None:
            owner.read()
            self._owners[slot] = None
        return slot

    def fill(self, slot: int, num_ids: int, ended: Mark) -> LateIds:
        """The ids that the work before `ended` writes into the slot."""
        owner = self._owners[slot] = LateIds(self.ids[slot, :num_ids], ended)
        return owner
