"""AWQ (gemm): 4-bit integers packed along the rows of the matrix, in an order of their own.

Stored for a matrix of N rows and K inputs with G groups:
  qweight [K, N/8] int32    qzeros [G, N/8] int32    scales [G, N]
Weight = (q - zero) * scale; zero points are stored as they are. Groups follow the inputs' order.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from octavo_engine.quantization.bits import WORD_BITS, unpack_columns
from octavo_engine.quantization.format import (
    Packing,
    Stored,
    TensorInfos,
    check_multiple,
    describe_groups,
    num_groups,
)
from octavo_engine.quantization.matrix import QuantizedMatrix

NIBBLE_OF_COLUMN = (0, 4, 1, 5, 2, 6, 3, 7)
"""Column c of a word lies in its nibble NIBBLE_OF_COLUMN[c]."""


@dataclass(frozen=True, kw_only=True)
class AwqFormat:
    bits: ClassVar[int] = 4
    group_size: int | None

    def describe(self) -> str:
        return f"gemm, {self.bits} bits, {describe_groups(self.group_size)}"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        return any(f"{module}.{suffix}" in infos for suffix in ("qweight", "qzeros", "scales"))

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        num_rows, in_features = shape
        per_word = WORD_BITS // self.bits
        check_multiple(module, "rows", num_rows, per_word, f"awq packs {per_word} to a word")
        if self.group_size is not None:
            check_multiple(module, "inputs", in_features, self.group_size, "awq fills its groups")
        groups = num_groups(in_features, self.group_size)
        return {
            "qweight": Stored((in_features, num_rows // per_word), ("I32",)),
            "qzeros": Stored((groups, num_rows // per_word), ("I32",)),
            "scales": Stored((groups, num_rows)),
        }

    @property
    def packing(self) -> Packing:
        return Packing("int4", self.group_size, is_symmetric=False)

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        return QuantizedMatrix(
            bits=self.bits,
            values=unpack_columns(stored["qweight"], self.bits, NIBBLE_OF_COLUMN).t(),
            scales=stored["scales"].t(),
            zeros=unpack_columns(stored["qzeros"], self.bits, NIBBLE_OF_COLUMN).t(),
            group_size=self.group_size,
        )

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        return self.read(stored, shape).dequantize()
