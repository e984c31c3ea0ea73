"""One quantised matrix, whatever format stored it: whole numbers or fp8, scales, zero points.

What every format reads into, from where it is dequantised or packed for a kernel. Knows no file.
"""

from dataclasses import dataclass, replace

import torch

from octavo_engine.parallel.shares import Share
from octavo_kernels.packed_weight import (
    INT4_ZERO,
    MAX_TILES,
    PackedKind,
    PackedWeight,
    num_steps,
    pack_words,
    step_inputs,
)

KERNEL_GROUP = 128
"""Inputs with a scale of their own in the fast kernels; larger groups are cut into such ones."""
UINT8_MIDDLE = 128
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True, kw_only=True)
class QuantizedMatrix:
    """matrix[n, k] = (values[n, k] - zeros[n', k']) * scales[n', k']."""

    bits: int
    values: torch.Tensor
    """[N, K]: uint8, or int8 or float8_e4m3fn where numbers have a sign of their own."""
    scales: torch.Tensor
    """[R, G], in the file's dtype."""
    zeros: torch.Tensor | None = None
    """[R, G], on the scale of the values; None: zero."""
    scale_rows: int = 1
    """Rows that share a scale; N or more: all."""
    group_size: int | None = None
    """Inputs that share a scale; None: all of a row."""
    groups: torch.Tensor | None = None
    """[K] int64: the group of each input, where they are not in order."""

    def dequantize(self) -> torch.Tensor:
        """[N, K] float32."""
        weight = self.values.float()
        if self.zeros is not None:
            weight = weight.sub_(self._spread(self.zeros))
        return weight.mul_(self._spread(self.scales))

    def _spread(self, numbers: torch.Tensor) -> torch.Tensor:
        """[R, G] -> float32 that broadcasts against [N, K]."""
        num_rows, width = self.values.shape
        numbers = numbers.float()
        if self.scale_rows != 1 and len(numbers) != 1:
            numbers = numbers.repeat_interleave(self.scale_rows, 0)[:num_rows]
        if self.groups is not None:
            return numbers[:, self.groups]
        if self.group_size is not None and numbers.shape[1] != 1:
            return numbers.repeat_interleave(self.group_size, 1)[:, :width]
        return numbers

    def share(self, rows: Share | None, inputs: Share | None) -> "QuantizedMatrix":
        """What a rank keeps of it; None: all. Groups that a share cuts keep their scale."""
        matrix = self if rows is None else self._share_of_rows(rows)
        return matrix if inputs is None else matrix._share_of_inputs(inputs)

    def _share_of_rows(self, rows: Share) -> "QuantizedMatrix":
        values = rows.take(self.values, 0)
        if len(self.scales) == 1:
            return replace(self, values=values)
        block, scales, zeros = self.scale_rows, self.scales, self.zeros
        if rows.is_cut_at(block):
            rows = rows.in_blocks(block)
        else:
            scales = scales.repeat_interleave(block, 0)
            zeros = None if zeros is None else zeros.repeat_interleave(block, 0)
            block = 1
        return replace(
            self,
            values=values,
            scales=rows.take(scales, 0),
            zeros=None if zeros is None else rows.take(zeros, 0),
            scale_rows=block,
        )

    def _share_of_inputs(self, inputs: Share) -> "QuantizedMatrix":
        values = inputs.take(self.values, 1)
        size = self.group_size
        if self.groups is not None:
            return replace(self, values=values, groups=inputs.take(self.groups, 0))
        if size is None or self.scales.shape[1] == 1:
            return replace(self, values=values)
        if not inputs.is_cut_at(size):
            groups = torch.arange(self.values.shape[1], device=values.device) // size
            return replace(self, values=values, groups=inputs.take(groups, 0))
        blocks = inputs.in_blocks(size)
        return replace(
            self,
            values=values,
            scales=blocks.take(self.scales, 1),
            zeros=None if self.zeros is None else blocks.take(self.zeros, 1),
        )

    @property
    def kind(self) -> PackedKind:
        if self.values.dtype == torch.float8_e4m3fn:
            return "fp8"
        return "int4" if self.bits == INT4_BITS else "int8"

    def pack(self) -> tuple[PackedWeight, torch.Tensor | None]:
        """(for the kernels, order in which they take the inputs; None: as they come)."""
        matrix, order = self._in_order()
        values, zeros = matrix._signed()
        group_size, scales, zeros = matrix._kernel_groups(zeros)
        num_rows, width = values.shape
        scale_rows = matrix.scale_rows
        if scale_rows >= num_rows and len(scales) == 1:
            scales = scales.expand(num_rows, -1)
            zeros = None if zeros is None else zeros.expand(num_rows, -1)
            scale_rows = 1
        packed = PackedWeight(
            kind=matrix.kind,
            words=pack_words(values, matrix.bits),
            scales=scales.T.contiguous(),
            zeros=None if zeros is None else zeros.T.to(torch.float16).contiguous(),
            num_rows=num_rows,
            width=width,
            group_size=group_size,
            scale_rows=scale_rows,
            arrivals=torch.zeros(MAX_TILES, dtype=torch.int32, device=values.device),
        )
        return packed, order

    def _in_order(self) -> tuple["QuantizedMatrix", torch.Tensor | None]:
        """The matrix with the inputs of each group side by side, and the order that does it."""
        if self.groups is None:
            return self, None
        width = self.values.shape[1]
        size = self.group_size or width
        in_order = torch.arange(width, device=self.values.device) // size
        if torch.equal(self.groups, in_order):
            return self._changed(self.values, size), None
        order = self.groups.argsort(stable=True)
        if torch.equal(self.groups[order], in_order):
            return self._changed(self.values[:, order], size), order
        # Groups of unequal sizes: each input gets its own scale, which is large but right.
        alone = QuantizedMatrix(
            bits=self.bits,
            values=self.values,
            scales=self.scales[:, self.groups],
            zeros=None if self.zeros is None else self.zeros[:, self.groups],
            scale_rows=self.scale_rows,
            group_size=1,
        )
        return alone, None

    def _changed(self, values: torch.Tensor, group_size: int) -> "QuantizedMatrix":
        return QuantizedMatrix(
            bits=self.bits,
            values=values,
            scales=self.scales,
            zeros=self.zeros,
            scale_rows=self.scale_rows,
            group_size=group_size,
        )

    def _signed(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(values as the kernels take them, zero points on that scale; None where it is theirs)."""
        values, zeros, default = self.values, self.zeros, 0
        if self.kind == "int4":
            default = INT4_ZERO
        elif values.dtype == torch.uint8:
            values = (values ^ UINT8_MIDDLE).view(torch.int8)
            zeros = None if zeros is None else zeros.float() - UINT8_MIDDLE
        if zeros is not None and bool((zeros == default).all()):
            zeros = None
        return values, zeros

    def _kernel_groups(
        self, zeros: torch.Tensor | None
    ) -> tuple[int, torch.Tensor, torch.Tensor | None]:
        """(group size, scales, zeros) with groups as large as the fast kernels have them."""
        width = self.values.shape[1]
        scales = self.scales if self.scales.dtype in SCALE_DTYPES else self.scales.float()
        padded = num_steps(width, self.bits) * step_inputs(self.bits)
        size = padded if self.group_size is None or scales.shape[1] == 1 else self.group_size
        wanted = kernel_group_size(self.kind, size)
        if wanted == size:
            return size, scales, zeros
        group = torch.arange(-(-width // wanted), device=scales.device) * wanted // size
        return wanted, scales[:, group], None if zeros is None else zeros[:, group]


def kernel_group_size(kind: PackedKind, group_size: int) -> int:
    """Inputs that share a scale once they are packed: larger groups of 4 bits are cut."""
    is_cut = kind == "int4" and group_size % KERNEL_GROUP == 0
    return KERNEL_GROUP if is_cut else group_size


INT4_BITS = 4
