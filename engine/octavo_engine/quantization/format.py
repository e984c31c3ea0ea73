"""The protocol of a weight format: how one matrix of a checkpoint is stored.

Knows tensor names, shapes and dtypes; knows no layer and no file. A format is a frozen value made
from the config, so that equal settings are equal formats.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.slots import FLOAT_DTYPES
from octavo_engine.loading.source import TensorInfo
from octavo_engine.quantization.matrix import QuantizedMatrix, kernel_group_size
from octavo_kernels.packed_weight import PackedKind

TensorInfos = Mapping[str, TensorInfo]
"""All tensors of the checkpoint by name."""
PACKED_BITS: Mapping[PackedKind, int] = {"int4": 4, "int8": 8, "fp8": 8}
ZERO_BYTES = 2
"""Of a zero point."""


@dataclass(frozen=True)
class Packing:
    """What is known of a matrix for the kernels before it is read."""

    kind: PackedKind
    group_size: int | None
    """Inputs that share a scale; None: all of a row."""
    is_symmetric: bool
    scale_rows: int = 1
    """Rows that share a scale."""
    scale_bytes: int = 2
    """Of one scale, in memory."""

    def num_bytes(self, num_rows: int, width: int) -> int:
        """What the kernels hold of a matrix whose rows fill their steps."""
        group_size = kernel_group_size(self.kind, self.group_size or width)
        num_scales = -(-num_rows // self.scale_rows) * num_groups(width, group_size)
        scale_bytes = self.scale_bytes + (0 if self.is_symmetric else ZERO_BYTES)
        return num_rows * width * PACKED_BITS[self.kind] // 8 + num_scales * scale_bytes


@dataclass(frozen=True)
class Stored:
    """What one stored tensor must be."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    """Any of these, by safetensors' names."""


class WeightFormat(Protocol):
    def describe(self) -> str:
        """In a few words with the numbers, for logs and errors."""
        ...

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        """Whether the checkpoint's tensors of this module look like this format."""
        ...

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        """Suffix of each stored tensor (`qweight` of `{module}.qweight`) to what it must be.

        shape: (num_rows, in_features) of the whole matrix. Raises CheckpointError with the numbers
        where the format cannot hold such a matrix.
        """
        ...

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        """The stored tensors by suffix -> [num_rows, in_features] float32.

        The whole matrix, so that a rank's share is a slice of it whatever the order of its groups.
        """
        ...

    @property
    def packing(self) -> Packing | None:
        """How kernels hold such a matrix; None: they do not, it is dequantised at load."""
        ...

    def read(self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]) -> QuantizedMatrix:
        """The stored tensors by suffix -> what they say. Called where `packing` is not None."""
        ...


def check_multiple(module: str, what: str, size: int, factor: int, why: str) -> None:
    if size % factor:
        raise CheckpointError(
            f"module {module!r} has {size} {what}, which is not a multiple of {factor}: {why}"
        )


def num_groups(in_features: int, group_size: int | None) -> int:
    """None: one group for the whole row. The last group may be short."""
    return 1 if group_size is None else -(-in_features // group_size)


def describe_groups(group_size: int | None) -> str:
    return "one group a row" if group_size is None else f"groups of {group_size}"


def check_group_indices(g_idx: torch.Tensor, groups: int, what: str) -> None:
    lowest, highest = int(g_idx.min()), int(g_idx.max())
    if lowest < 0 or highest >= groups:
        raise CheckpointError(
            f"an input belongs to group {lowest if lowest < 0 else highest}, but there are groups "
            f"0 to {groups - 1} ({what})"
        )
