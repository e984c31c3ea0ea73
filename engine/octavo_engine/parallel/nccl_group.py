"""A group of ranks on GPUs: NCCL, and for few tokens kernels over memory that GPUs share.

All calls can be captured in graphs. torch knows one NCCL group a process.
"""

from datetime import timedelta

import structlog
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ReduceOp, Store

from octavo_engine.parallel.group import add_rms_norm, rows_or_zeros, with_norm
from octavo_engine.parallel.meeting import Meeting
from octavo_engine.parallel.setup import RankSetup
from octavo_engine.parallel.symmetric import Symmetric, open_symmetric
from octavo_kernels.gpu.all_reduce import Following, LookUp
from octavo_kernels.gpu.gather import all_gather, first_of_ranks, largest
from octavo_kernels.linear_ops import RowNorm

log = structlog.get_logger(__name__)


class NcclGroup:
    """Implements `Group`."""

    def __init__(
        self, setup: RankSetup, store: Store, device: torch.device, timeout_s: float
    ) -> None:
        """Waits for the other ranks. timeout_s: of each call outside a graph."""
        self.rank, self.size = setup.rank, setup.size
        self._device = device
        self._meeting = Meeting(setup, store)
        self._symmetric: Symmetric | None = None
        dist.init_process_group(
            "nccl",
            store=PrefixStore("nccl", store),
            rank=setup.rank,
            world_size=setup.size,
            timeout=timedelta(seconds=timeout_s),
            device_id=device,
        )

    def prepare(self, hidden_size: int, dtype: torch.dtype) -> None:
        if dtype.itemsize != 2:
            return
        world = dist.group.WORLD
        assert world is not None
        try:
            self._symmetric = open_symmetric(
                world.group_name, self.rank, self.size, hidden_size, dtype, self._device
            )
        except RuntimeError as error:  # on several hosts, or GPUs that reach no others
            log.warning("no_symmetric_memory", rank=self.rank, error=str(error))
        # Either all have it or none: they must make the same launches.
        if self.smallest(int(self._symmetric is not None)) == 0:
            self._symmetric = None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if self._symmetric is not None and self._symmetric.can_sum(x, len(x)):
            return self._symmetric.all_reduce(x)[1]
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def all_reduce_add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, norm: RowNorm
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self._symmetric is not None and self._symmetric.can_sum(x, len(x)):
            following = Following(residual, norm.gamma, norm.eps, norm.gamma_offset)
            return self._symmetric.all_reduce(x, following)
        return add_rms_norm(self.all_reduce(x), residual, norm)

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, ReduceOp.MAX)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        if self._symmetric is not None and self._symmetric.can_gather(x):
            return all_gather(x, self._symmetric.rows)
        num_rows, width = x.shape
        parts = x.new_empty(self.size, num_rows, width)
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts.transpose(0, 1).reshape(num_rows, self.size * width)

    def look_up(
        self, token_ids: torch.Tensor, own_rows: torch.Tensor, norm: RowNorm | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        if self._symmetric is None or not self._symmetric.can_sum(own_rows, len(token_ids)):
            return with_norm(self.all_reduce(rows_or_zeros(token_ids, own_rows, self.rank)), norm)
        wanted = LookUp(token_ids, self.rank * len(own_rows))
        if norm is None:
            return self._symmetric.all_reduce(own_rows, look_up=wanted)[1], None
        following = Following(None, norm.gamma, norm.eps, norm.gamma_offset)
        normed, rows = self._symmetric.all_reduce(own_rows, following, wanted)
        return rows, normed

    def largest(self, x: torch.Tensor) -> torch.Tensor:
        if self._symmetric is not None and self._symmetric.can_exchange(len(x)):
            return largest(x, self._symmetric.words)
        return self.all_gather(x).argmax(dim=-1)

    def broadcast(self, x: torch.Tensor) -> None:
        if self._symmetric is not None and self._symmetric.can_overwrite(x):
            first_of_ranks(x, self._symmetric.words)
        else:
            dist.broadcast(x, 0)

    def smallest(self, value: int) -> int:
        self._meeting.wait()
        number = torch.tensor([value], device=self._device)
        dist.all_reduce(number, ReduceOp.MIN)
        return int(number)

    def close(self) -> None:
        """Hangs where a graph holds one of its calls; does not wait for the other ranks."""
        torch.cuda.set_device(self._device)  # of the thread that was begun for this
        self._symmetric = None
        world = dist.group.WORLD
        assert world is not None
        world._get_backend(self._device).abort()
        dist.destroy_process_group()
