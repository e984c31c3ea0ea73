"""RMS norms with their weight; a pending residual is added first where the block asks for it."""

from collections.abc import Iterator

import torch

import octavo_kernels
from octavo_engine.layers.linear import Build
from octavo_engine.loading.parts import share_into
from octavo_engine.loading.slots import Slot, copy_into
from octavo_engine.parallel.shares import Share
from octavo_kernels.linear_ops import RowNorm, add_parts_rms_norm


class RMSNorm:
    def __init__(
        self, name: str, size: int, *, eps: float, weight_offset: float, build: Build
    ) -> None:
        self._name = name
        self._group = build.group
        self.eps = eps
        self.weight_offset = weight_offset
        self.weight = build.empty(size)

    def slots(self) -> Iterator[Slot]:
        yield Slot(f"{self._name}.weight", tuple(self.weight.shape), copy_into(self.weight))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises x[..., size]."""
        return octavo_kernels.rms_norm(x, self.weight, self.eps, weight_offset=self.weight_offset)

    def into(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Normalises x[..., size] into out, contiguous."""
        octavo_kernels.rms_norm_into(
            out, x, self.weight, self.eps, weight_offset=self.weight_offset
        )

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, the sum)."""
        return octavo_kernels.rms_norm(
            x, self.weight, self.eps, residual=residual, weight_offset=self.weight_offset
        )

    def add_shares(
        self, share: torch.Tensor, residual: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """As `add`, of what is a rank's share of a sum over ranks, or of a product's parts
        [parts, T, size]."""
        if share.dim() > residual.dim():
            return add_parts_rms_norm(
                share, residual, self.weight, self.eps, weight_offset=self.weight_offset
            )
        norm = RowNorm(self.weight, self.weight_offset, self.eps)
        return self._group.all_reduce_add_rms_norm(share, residual, norm)


class SharedRMSNorm(RMSNorm):
    """Over a vector of which each rank has some neighbours, equally many of each."""

    def __init__(
        self,
        name: str,
        whole_size: int,
        share: Share,
        *,
        eps: float,
        weight_offset: float,
        build: Build,
    ) -> None:
        super().__init__(name, share.size, eps=eps, weight_offset=weight_offset, build=build)
        self._whole_size = whole_size
        self._share = share

    def slots(self) -> Iterator[Slot]:
        yield Slot(
            f"{self._name}.weight", (self._whole_size,), share_into(self.weight, self._share)
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises x[..., the rank's share] by the mean square of all ranks' shares."""
        if self._group.size == 1:
            return super().__call__(x)
        wide = x.float()
        # Where several ranks have the same neighbours all are counted equally often.
        sums = self._group.all_reduce(wide.square().sum(dim=-1, keepdim=True))
        mean = sums / (self._group.size * x.shape[-1])
        scale = self.weight.float() + self.weight_offset
        return (wide * torch.rsqrt(mean + self.eps) * scale).to(x.dtype)
