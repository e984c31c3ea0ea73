"""compressed-tensors' pack-quantized: integers packed along the inputs, row by row.

Stored for a matrix of N rows and K inputs with G groups, b bits:
  weight_packed [N, ceil(K*b/32)] int32, low bits first, each value plus 2^(b-1)
  weight_scale [N, G]    weight_shape [2] = N, K    weight_g_idx [K]: only where groups are spread
  weight_zero_point, when asymmetric: [ceil(N*b/32), G] int32, packed along the rows; or [N, G] int8
Weight = (q - zero) * scale.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.bits import WORD_BITS, unpack_columns, unpack_rows
from octavo_engine.quantization.format import (
    Packing,
    Stored,
    TensorInfos,
    check_group_indices,
    describe_groups,
    num_groups,
)
from octavo_engine.quantization.matrix import QuantizedMatrix
from octavo_kernels.packed_weight import PackedKind


@dataclass(frozen=True, kw_only=True)
class PackedFormat:
    bits: int
    group_size: int | None
    """Inputs that share a scale; None: all of a row."""
    is_symmetric: bool

    def describe(self) -> str:
        kind = "symmetric" if self.is_symmetric else "asymmetric"
        return f"pack-quantized, {self.bits} bits, {describe_groups(self.group_size)}, {kind}"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        return f"{module}.weight_packed" in infos or f"{module}.weight_scale" in infos

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        num_rows, in_features = shape
        groups = num_groups(in_features, self.group_size)
        found = {
            "weight_packed": Stored((num_rows, self._num_words(in_features)), ("I32",)),
            "weight_scale": Stored((num_rows, groups)),
        }
        if f"{module}.weight_shape" in infos:
            found["weight_shape"] = Stored((2,), ("I64", "I32"))
        if f"{module}.weight_g_idx" in infos:
            found["weight_g_idx"] = Stored((in_features,), ("I32",))
        if not self.is_symmetric:
            name = f"{module}.weight_zero_point"
            is_byte = name in infos and infos[name].dtype == "I8"
            rows = num_rows if is_byte else self._num_words(num_rows)
            found["weight_zero_point"] = Stored((rows, groups), ("I8" if is_byte else "I32",))
        return found

    def _num_words(self, num_values: int) -> int:
        return -(-num_values * self.bits // WORD_BITS)

    @property
    def packing(self) -> Packing:
        kind: PackedKind = "int4" if self.bits == 4 else "int8"
        return Packing(kind, self.group_size, self.is_symmetric)

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        num_rows, in_features = shape
        if (said := stored.get("weight_shape")) is not None and tuple(said.tolist()) != shape:
            raise CheckpointError(
                f"weight_shape says {said.tolist()}, the config asks for {list(shape)}"
            )
        scales = stored["weight_scale"]
        return QuantizedMatrix(
            bits=self.bits,
            values=unpack_columns(stored["weight_packed"], self.bits)[:, :in_features],
            scales=scales,
            zeros=self._zeros(stored.get("weight_zero_point"), scales, num_rows),
            group_size=self.group_size,
            groups=self._groups(stored.get("weight_g_idx"), in_features),
        )

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        return self.read(stored, shape).dequantize()

    def _zeros(
        self, stored: torch.Tensor | None, scales: torch.Tensor, num_rows: int
    ) -> torch.Tensor:
        """[N, G] float32, on the scale of the packed values."""
        offset = 2.0 ** (self.bits - 1)
        if stored is None:
            return torch.full_like(scales, offset, dtype=torch.float32)
        if stored.dtype == torch.int32:
            return unpack_rows(stored, self.bits)[:num_rows].float()
        return stored.float() + offset

    def _groups(self, g_idx: torch.Tensor | None, in_features: int) -> torch.Tensor | None:
        """[K] int64: the group of each input; None: in order."""
        if g_idx is None:
            return None
        groups = num_groups(in_features, self.group_size)
        check_group_indices(g_idx, groups, f"{self.describe()}, {in_features} inputs")
        return g_idx.long()
