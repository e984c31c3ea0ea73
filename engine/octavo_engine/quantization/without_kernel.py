"""What formats share whose matrices no kernel multiplies by: they are dequantised at load."""

from collections.abc import Mapping

import torch

from octavo_engine.quantization.matrix import QuantizedMatrix


class WithoutKernel:
    """Part of a `WeightFormat`."""

    @property
    def packing(self) -> None:
        return None

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        raise NotImplementedError("no kernel holds such a matrix")  # `packing` is None
