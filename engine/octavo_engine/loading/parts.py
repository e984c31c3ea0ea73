"""A rank's part of a checkpoint's matrix, and the slots that fill it from the whole one."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from octavo_engine.loading.slots import Slot
from octavo_engine.parallel.shares import Share


@dataclass(frozen=True)
class Part:
    """One checkpoint matrix [whole_rows, in_features] among those packed into one product."""

    name: str
    whole_rows: int
    rows: Share | None = None
    """Those that this rank keeps; None: all."""

    @property
    def num_rows(self) -> int:
        """Of this rank."""
        return self.whole_rows if self.rows is None else self.rows.size


def share_into(target: torch.Tensor, *shares: Share | None) -> Callable[[torch.Tensor], None]:
    """Copies of a whole tensor what target[...] keeps of it; one share for each dimension."""

    def write(source: torch.Tensor) -> None:
        for dim, share in enumerate(shares):
            if share is not None:
                source = share.take(source, dim)
        target.copy_(source)

    return write


def transposed_share_into(
    target: torch.Tensor, *shares: Share | None
) -> Callable[[torch.Tensor], None]:
    """For checkpoints that store [in, out] where we keep [out, in] (last two dimensions); the
    shares are of our order."""
    copy = share_into(target, *shares)

    def write(source: torch.Tensor) -> None:
        copy(source.transpose(-1, -2))

    return write


def discard(source: torch.Tensor) -> None:
    """Another rank keeps it."""


def bias_slots(parts: Sequence[Part], bias: torch.Tensor | None) -> Iterator[Slot]:
    """One for each part. bias: one below the other as the parts are; None: another rank has it."""
    first = 0
    for part in parts:
        write: Callable[[torch.Tensor], None] = discard
        if bias is not None:
            target = bias[first : first + part.num_rows]
            write = share_into(target, part.rows)
            first += part.num_rows
        yield Slot(f"{part.name}.bias", (part.whole_rows,), write)
