"""RMS norm with its weight; adds a pending residual first where the block asks for it."""

from collections.abc import Iterator

import torch

import octavo_kernels
from octavo_engine.layers.linear import Build
from octavo_engine.loading.slots import Slot, copy_into


class RMSNorm:
    def __init__(
        self, name: str, size: int, *, eps: float, weight_offset: float, build: Build
    ) -> None:
        self._name = name
        self.eps = eps
        self.weight_offset = weight_offset
        self.weight = build.empty(size)

    def slots(self) -> Iterator[Slot]:
        yield Slot(f"{self._name}.weight", tuple(self.weight.shape), copy_into(self.weight))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises x[..., size]."""
        return octavo_kernels.rms_norm(x, self.weight, self.eps, weight_offset=self.weight_offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(norm of the sum, the sum)."""
        return octavo_kernels.rms_norm(
            x, self.weight, self.eps, residual=residual, weight_offset=self.weight_offset
        )
