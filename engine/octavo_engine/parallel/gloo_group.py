"""A group of ranks on CPUs, by gloo: everything but the speed is as on GPUs.

16-bit numbers are summed in float32. The group holds its own connections, so that several may live
in one process.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, ReduceOp, Store

from octavo_engine.parallel.group import add_rms_norm, rows_or_zeros, with_norm
from octavo_engine.parallel.meeting import Meeting
from octavo_engine.parallel.setup import RankSetup
from octavo_engine.parallel.sockets import address_towards
from octavo_kernels.linear_ops import RowNorm

_MEETING_LIMIT = timedelta(days=1)
"""Of a call that is begun while another rank loads: it fails at once when that one ends."""


class GlooGroup:
    """Implements `Group`."""

    def __init__(self, setup: RankSetup, store: Store, timeout_s: float) -> None:
        """Waits for the other ranks. timeout_s: of this and of each call."""
        self.rank, self.size = setup.rank, setup.size
        gloo: Any = dist.ProcessGroupGloo  # torch declares half of it
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=address_towards(setup.address))]
        options._timeout = timedelta(seconds=timeout_s)
        self._timeout = options._timeout
        self._meeting = Meeting(setup, store)
        self._gloo = gloo(PrefixStore("gloo", store), setup.rank, setup.size, options)

    def prepare(self, hidden_size: int, dtype: torch.dtype) -> None:
        """Nothing: all calls are made in the same way."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        self._reduce(wide, ReduceOp.SUM)
        return wide.to(x.dtype)

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RowNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return add_rms_norm(self.all_reduce(x), residual, norm)

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        self._reduce(x, ReduceOp.MAX)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._gloo.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=-1)

    def look_up(
        self, token_ids: torch.Tensor, own_rows: torch.Tensor, norm: RowNorm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return with_norm(self.all_reduce(rows_or_zeros(token_ids, own_rows, self.rank)), norm)

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        return self.all_gather(x).argmax(dim=-1)

    def broadcast(self, x: torch.Tensor) -> None:
        self._gloo.broadcast(x, 0).wait()

    def smallest(self, value: int) -> int:
        number = torch.tensor([value])
        options = AllreduceOptions()
        options.reduceOp, options.timeout = ReduceOp.MIN, _MEETING_LIMIT
        work = self._gloo.allreduce([number], options)
        self._meeting.wait(work.is_completed)
        work.wait(self._timeout)
        return int(number)

    def _reduce(self, x: torch.Tensor, how: ReduceOp.RedOpType) -> None:
        options = AllreduceOptions()
        options.reduceOp = how
        self._gloo.allreduce([x], options).wait()

    def close(self) -> None:
        """Nothing: connections end with the group."""
