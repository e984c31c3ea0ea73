"""What layers and runners ask of the other ranks. Knows no process and no transport.

All ranks make the same calls in the same order. `gloo_group` and `nccl_group` implement it.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

import octavo_kernels
from octavo_kernels.linear_ops import RowNorm, embed_rows


class Group(Protocol):
    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def prepare(self, hidden_size: int, dtype: torch.dtype) -> None:
        """Told before the model is built what most sums will be of: [T, hidden_size] of dtype."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, the same on each; x may be overwritten."""
        ...

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RowNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the total, total): the total is the sum of x over ranks plus the residual, which
        is the same on each rank. See `octavo_kernels.rms_norm`."""
        ...

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        """The largest over ranks, element by element; x may be overwritten."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """x[R, n] of each rank -> [R, size * n], in the order of ranks."""
        ...

    def look_up(
        self, token_ids: torch.Tensor, own_rows: torch.Tensor, norm: RowNorm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """token_ids[T] -> ([T, H], its norm if one is asked for): rows of a table of which each
        rank has own_rows[n, H], in the order of ranks. The same on each."""
        ...

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        """x[R, n] of each rank -> [R] int64: where the first of the largest numbers of a row of
        `all_gather` is. The same on each."""
        ...

    def broadcast(self, x: torch.Tensor) -> None:
        """Overwrites x with that of rank 0."""
        ...

    def smallest(self, value: int) -> int:
        """Over ranks; waits for all of them without a limit, since some load longer than others."""
        ...

    def close(self) -> None:
        """When no rank will make a call any more and nothing holds one."""
        ...


def rows_or_zeros(token_ids: torch.Tensor, own_rows: torch.Tensor, rank: int) -> torch.Tensor:
    """A rank's part of the sum that is `Group.look_up`: zeros for the ids that others have."""
    num_own = len(own_rows)
    own_ids = token_ids - rank * num_own
    is_own = (own_ids >= 0) & (own_ids < num_own)
    found = functional.embedding(own_ids.clamp(0, num_own - 1), own_rows)
    return found.masked_fill_(~is_own.unsqueeze(-1), 0.0)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, norm: RowNorm
) -> tuple[torch.Tensor, torch.Tensor]:
    """(norm of the total, total) of a sum over ranks and the residual."""
    return octavo_kernels.rms_norm(
        x, norm.gamma, norm.eps, residual=residual, weight_offset=norm.gamma_offset
    )


def with_norm(x: torch.Tensor, norm: RowNorm | None) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(x, its norm if one is asked for)."""
    if norm is None:
        return x, None
    return x, octavo_kernels.rms_norm(x, norm.gamma, norm.eps, weight_offset=norm.gamma_offset)


@dataclass(frozen=True)
class SoloGroup:
    """One rank: nobody is asked."""

    rank: int = 0
    size: int = 1

    def prepare(self, hidden_size: int, dtype: torch.dtype) -> None:
        pass

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RowNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(x, residual, norm)

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def look_up(
        self, token_ids: torch.Tensor, own_rows: torch.Tensor, norm: RowNorm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return embed_rows(token_ids, own_rows, 1.0, norm)

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        return x.argmax(dim=-1)

    def broadcast(self, x: torch.Tensor) -> None:
        pass

    def smallest(self, value: int) -> int:
        return value

    def close(self) -> None:
        pass
