"""A group of ranks on CPUs, by gloo: everything but the speed is as on GPUs.

16-bit numbers are summed in float32. The group holds its own connections, so that several may live
in one process.
"""

import socket
from datetime import timedelta

import torch
import torch.distributed as dist

import octavo_kernels
from octavo_engine.parallel.setup import RankSetup


class GlooGroup:
    """Implements `Group`."""

    def __init__(self, setup: RankSetup, store: dist.Store, timeout_s: float) -> None:
        """Waits for the other ranks. timeout_s: of this and of each call."""
        self.rank, self.size = setup.rank, setup.size
        options = dist.ProcessGroupGloo._Options()
        options._devices = [
            dist.ProcessGroupGloo.create_device(hostname=address_towards(setup.address))
        ]
        options._timeout = timedelta(seconds=timeout_s)
        prefixed = dist.PrefixStore("gloo", store)
        self._gloo = dist.ProcessGroupGloo(prefixed, setup.rank, setup.size, options)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        self._reduce(wide, dist.ReduceOp.SUM)
        return wide.to(x.dtype)

    def all_reduce_add_rms_norm(
        self,
        x: torch.Tensor,
        residual: torch.Tensor,
        weight: torch.Tensor,
        eps: float,
        weight_offset: float,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = self.all_reduce(x)
        return octavo_kernels.rms_norm(
            total, weight, eps, residual=residual, weight_offset=weight_offset
        )

    def all_reduce_max(self, x: torch.Tensor) -> torch.Tensor:
        self._reduce(x, dist.ReduceOp.MAX)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(x) for _ in range(self.size)]
        self._gloo.allgather([parts], [x.contiguous()]).wait()
        return torch.cat(parts, dim=-1)

    def broadcast(self, x: torch.Tensor) -> None:
        self._gloo.broadcast(x, 0).wait()

    def smallest(self, value: int) -> int:
        number = torch.tensor([value])
        self._reduce(number, dist.ReduceOp.MIN)
        return int(number)

    def _reduce(self, x: torch.Tensor, how: dist.ReduceOp.RedOpType) -> None:
        options = dist.AllreduceOptions()
        options.reduceOp = how
        self._gloo.allreduce([x], options).wait()

    def close(self) -> None:
        """Nothing: connections end with the group."""


def address_towards(address: str) -> str:
    """This host's address on the way to another, which sees us under it. Sends nothing."""
    family, kind, protocol, _, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)
        own: str = probe.getsockname()[0]
    return own
