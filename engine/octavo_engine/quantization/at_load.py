"""Quantises weights while they are loaded: one scale a row, from its largest weight."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.loading.slots import FLOAT_DTYPES
from octavo_engine.quantization.format import Packing, Stored, TensorInfos
from octavo_engine.quantization.inputs import FP8_MAX
from octavo_engine.quantization.matrix import QuantizedMatrix
from octavo_engine.quantization.scaled import SCALE_BYTES, ValueKind

INT8_MAX = 127.0


@dataclass(frozen=True)
class AtLoadFormat:
    kind: ValueKind

    def describe(self) -> str:
        return f"{self.kind} at load, one scale a row"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        info = infos.get(f"{module}.weight")
        return info is not None and info.dtype in FLOAT_DTYPES

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        return {"weight": Stored(shape)}

    @property
    def packing(self) -> Packing:
        return Packing(self.kind, None, is_symmetric=True, scale_bytes=SCALE_BYTES)

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        values, scales = quantize_rows(stored["weight"], self.kind)
        return QuantizedMatrix(bits=8, values=values, scales=scales)

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        return self.read(stored, shape).dequantize()


def quantize_rows(weight: torch.Tensor, kind: ValueKind) -> tuple[torch.Tensor, torch.Tensor]:
    """weight[N, K] -> (values [N, K] float8_e4m3fn or int8, scales [N, 1] float32)."""
    weight = weight.float()
    top = FP8_MAX if kind == "fp8" else INT8_MAX
    scales = weight.abs().amax(dim=1, keepdim=True) / top
    scales = scales.clamp_min(torch.finfo(torch.float32).tiny)  # a row of zeros stays one
    scaled = weight / scales
    if kind == "fp8":
        return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn), scales
    return scaled.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scales
