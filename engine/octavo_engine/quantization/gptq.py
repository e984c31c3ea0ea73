"""GPTQ: integers packed along the inputs, one scale and zero point for each group of inputs.

Stored for a matrix of N rows and K inputs with G groups, b bits:
  qweight [K*b/32, N] int32, low bits first    scales [G, N]    g_idx [K]: the group of each input
  qzeros  [G, N*b/32] int32, low bits first
Weight = (q - zero) * scale. Version 1 stores each zero point less one, version 2 as it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.quantization.bits import WORD_BITS, unpack_columns, unpack_rows
from octavo_engine.quantization.format import (
    Packing,
    Stored,
    TensorInfos,
    check_group_indices,
    check_multiple,
    describe_groups,
    num_groups,
)
from octavo_engine.quantization.matrix import QuantizedMatrix
from octavo_kernels.packed_weight import PackedKind


@dataclass(frozen=True, kw_only=True)
class GptqFormat:
    bits: int
    group_size: int | None
    """Inputs that share a scale; None: all of them."""
    is_symmetric: bool
    uses_act_order: bool
    """desc_act: groups are spread over the inputs, g_idx says how."""
    zero_offset: int
    """What is missing in the stored zero points: 1 in version 1, 0 in version 2."""

    def describe(self) -> str:
        kind = "symmetric" if self.is_symmetric else "asymmetric"
        order = ", act-order" if self.uses_act_order else ""
        return f"{self.bits} bits, {describe_groups(self.group_size)}, {kind}{order}"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        return any(f"{module}.{suffix}" in infos for suffix in ("qweight", "qzeros", "scales"))

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        num_rows, in_features = shape
        per_word = WORD_BITS // self.bits
        why = f"{self.bits}-bit values are packed {per_word} to a word"
        check_multiple(module, "rows", num_rows, per_word, why)
        check_multiple(module, "inputs", in_features, per_word, why)
        groups = num_groups(in_features, self.group_size)
        found = {
            "qweight": Stored((in_features // per_word, num_rows), ("I32",)),
            "qzeros": Stored((groups, num_rows // per_word), ("I32",)),
            "scales": Stored((groups, num_rows)),
        }
        if self.uses_act_order or f"{module}.g_idx" in infos:
            found["g_idx"] = Stored((in_features,), ("I32",))
        return found

    @property
    def packing(self) -> Packing:
        kind: PackedKind = "int4" if self.bits == 4 else "int8"
        return Packing(kind, self.group_size, self.is_symmetric)

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        values = unpack_rows(stored["qweight"], self.bits)
        qzeros = add_to_each(stored["qzeros"], self.bits, self.zero_offset)
        zeros = unpack_columns(qzeros, self.bits)
        return QuantizedMatrix(
            bits=self.bits,
            values=values.t(),
            scales=stored["scales"].t(),
            zeros=zeros.t(),
            group_size=self.group_size,
            groups=self._groups(stored.get("g_idx"), shape[1], len(zeros)),
        )

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        return self.read(stored, shape).dequantize()

    def _groups(
        self, g_idx: torch.Tensor | None, in_features: int, groups: int
    ) -> torch.Tensor | None:
        """[K] int64: the group of each input; None: in order."""
        if g_idx is None or (not self.uses_act_order and not bool(g_idx.any())):
            # Some exporters leave an unused g_idx at zero.
            return None
        check_group_indices(g_idx, groups, f"{self.describe()}, {in_features} inputs")
        return g_idx.long()


def add_to_each(words: torch.Tensor, bits: int, amount: int) -> torch.Tensor:
    """Adds to every packed value, carrying into the next one as the writers of version 1 borrow.

    They subtract one from all by one subtraction of words, so that a zero point of 0 takes its one
    from its neighbour; the carry gives it back. The sum wraps around, as it must.
    """
    ones = sum(amount << shift for shift in range(0, WORD_BITS, bits))
    return words + torch.tensor(ones, dtype=torch.int32, device=words.device)
