"""Weights stored one by one as FP8 (e4m3) or int8, with scales beside them.

Stored for a matrix of N rows and K inputs:
  weight [N, K] F8_E4M3 or I8
  scales: one number, [N, 1] a row, [N, G] for groups of inputs, or one for each block of both
  weight_zero_point, for asymmetric int8: shaped as the scales
Weight = (q - zero) * scale. DeepSeek names the scales weight_scale_inv; they multiply all the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Literal

import torch

from octavo_engine.quantization.format import Packing, Stored, TensorInfos, num_groups
from octavo_engine.quantization.matrix import QuantizedMatrix

ValueKind = Literal["fp8", "int8"]
STORED_DTYPES: Mapping[ValueKind, str] = {"fp8": "F8_E4M3", "int8": "I8"}
SCALE_SUFFIXES = ("weight_scale", "weight_scale_inv")
SCALE_BYTES = 4
"""Scales are held as float32."""


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What shares one scale: a block of num_rows x num_inputs; None means all of them.

    (None, None) is the whole tensor, (1, None) a row, (1, g) a group of inputs, (128, 128) a block.
    """

    num_rows: int | None
    num_inputs: int | None

    def shape(self, matrix: tuple[int, int]) -> tuple[int, int]:
        """(rows, columns) of the scales; the last block may be short."""
        return num_groups(matrix[0], self.num_rows), num_groups(matrix[1], self.num_inputs)

    def describe(self) -> str:
        match (self.num_rows, self.num_inputs):
            case (None, None):
                return "one scale a tensor"
            case (1, None):
                return "one scale a row"
            case (1, num_inputs):
                return f"groups of {num_inputs}"
            case (num_rows, num_inputs):
                return f"blocks of {num_rows}x{num_inputs}"


PER_TENSOR = Scales(num_rows=None, num_inputs=None)
PER_ROW = Scales(num_rows=1, num_inputs=None)


@dataclass(frozen=True, kw_only=True)
class ScaledFormat:
    kind: ValueKind
    scales: Scales | None
    """None: the config does not say; one scale for the tensor or one a row, as the file has it."""
    is_symmetric: bool = True

    def describe(self) -> str:
        scales = "one scale a tensor or row" if self.scales is None else self.scales.describe()
        return f"{self.kind}, {scales}{'' if self.is_symmetric else ', asymmetric'}"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        info = infos.get(f"{module}.weight")
        return info is not None and info.dtype == STORED_DTYPES[self.kind]

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        suffix = next((s for s in SCALE_SUFFIXES if f"{module}.{s}" in infos), SCALE_SUFFIXES[0])
        found = {
            "weight": Stored(shape, (STORED_DTYPES[self.kind],)),
            suffix: Stored(self._stored_shape(f"{module}.{suffix}", shape, infos)),
        }
        if not self.is_symmetric:
            zero_shape = self._stored_shape(f"{module}.weight_zero_point", shape, infos)
            found["weight_zero_point"] = Stored(zero_shape, ("I8",))
        return found

    def _stored_shape(
        self, name: str, matrix: tuple[int, int], infos: TensorInfos
    ) -> tuple[int, ...]:
        """The file's own where it holds as many scales as it must: some are [N], some [N, 1]."""
        stored = infos[name].shape if name in infos else None
        scales = self._scales_of(prod(stored) if stored is not None else None)
        wanted = scales.shape(matrix)
        is_vector = scales.num_inputs is None
        if stored is not None and is_vector and prod(stored) == prod(wanted):
            return stored
        return wanted

    def _scales_of(self, num_stored: int | None) -> Scales:
        if self.scales is not None:
            return self.scales
        return PER_TENSOR if num_stored == 1 else PER_ROW

    @property
    def packing(self) -> Packing:
        scales = PER_ROW if self.scales is None else self.scales
        # One scale of a whole tensor is written out for each row.
        return Packing(
            self.kind, scales.num_inputs, self.is_symmetric, scales.num_rows or 1, SCALE_BYTES
        )

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        scale = next(stored[suffix] for suffix in SCALE_SUFFIXES if suffix in stored)
        scales = self._scales_of(scale.numel())
        zeros = None if self.is_symmetric else stored["weight_zero_point"]
        return QuantizedMatrix(
            bits=8,
            values=stored["weight"],
            scales=scale.float().reshape(scales.shape(shape)),
            zeros=None if zeros is None else zeros.float().reshape(scales.shape(shape)),
            scale_rows=scales.num_rows or shape[0],
            group_size=scales.num_inputs,
        )

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        return self.read(stored, shape).dequantize()
