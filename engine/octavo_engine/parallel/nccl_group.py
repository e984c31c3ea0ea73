"""A group of ranks on GPUs: NCCL, and for few tokens the kernel over memory that GPUs share.

All calls can be captured in graphs. torch knows one NCCL group a process.
"""

from datetime import timedelta

import structlog
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, ReduceOp, Store

import octavo_kernels
from octavo_engine.parallel.setup import RankSetup
from octavo_kernels.gpu.all_reduce import SymmetricAllReduce

log = structlog.get_logger(__name__)

MAX_SYMMETRIC_TOKENS = 256
"""Beyond, a sum is bound by the links, not by launches: NCCL's is as fast."""


class NcclGroup:
    """Implements `Group`."""

    def __init__(
        self, setup: RankSetup, store: Store, device: torch.device, timeout_s: float
    ) -> None:
        """Waits for the other ranks. timeout_s: of each call outside a graph."""
        self.rank, self.size = setup.rank, setup.size
        self._device = device
        self._symmetric: SymmetricAllReduce | None = None
        self._symmetric_kind: tuple[int, torch.dtype] | None = None
        """Width and type of what it sums."""
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
        self._symmetric_kind = hidden_size, dtype
        world = dist.group.WORLD
        assert world is not None
        try:
            self._symmetric = SymmetricAllReduce(
                world.group_name,
                self.rank,
                self.size,
                max_tokens=MAX_SYMMETRIC_TOKENS,
                hidden_size=hidden_size,
                dtype=dtype,
                device=self._device,
            )
        except RuntimeError as error:  # on several hosts, or GPUs that reach no others
            log.warning("no_symmetric_memory", rank=self.rank, error=str(error))
        # Either all have it or none: they must make the same launches.
        if self.smallest(int(self._symmetric is not None)) == 0:
            self._symmetric = None

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        if (symmetric := self._symmetric_for(x)) is not None:
            return symmetric.all_reduce(x)
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def all_reduce_add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        weight_offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if (symmetric := self._symmetric_for(x)) is not None:
            return symmetric.add_rms_norm(x, residual, weight, eps, weight_offset)
        total = self.all_reduce(x)
        return octavo_kernels.rms_norm(
            total, weight, eps, residual=residual, weight_offset=weight_offset
        )

    def _symmetric_for(self, x: torch.Tensor) -> SymmetricAllReduce | None:
        is_fit = len(x) <= MAX_SYMMETRIC_TOKENS and (x.shape[1], x.dtype) == self._symmetric_kind
        return self._symmetric if is_fit else None

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x, ReduceOp.MAX)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, width = x.shape
        parts = x.new_empty(self.size, num_rows, width)
        dist.all_gather_into_tensor(parts, x.contiguous())
        return parts.transpose(0, 1).reshape(num_rows, self.size * width)

    def broadcast(self, x: torch.Tensor) -> None:
        dist.broadcast(x, 0)

    def smallest(self, value: int) -> int:
        number = torch.tensor([value], device=self._device)
        dist.all_reduce(number, ReduceOp.MIN)
        return int(number)

    def close(self) -> None:
        """Hangs where a graph holds one of its calls; does not wait for the other ranks."""
        self._symmetric = None
        world = dist.group.WORLD
        assert world is not None
        world._get_backend(self._device).abort()
        dist.destroy_process_group()
