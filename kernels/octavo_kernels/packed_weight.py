"""Weights of 4 or 8 bits as the kernels hold them: 16-bit words whose planes are matrices.

A row's inputs are cut into steps of 256 (4 bits) or 128 (8 bits). A step is 64 words; value j of
word c is input 64 j + c of the step, low bits first. So one tile of words gives, by shift and mask,
several tiles of 64 consecutive inputs in the very same layout, and inputs keep their order.

Of 8 bits, words lie row by row: seen as bytes they are a matrix [N, K] whose inputs are interleaved
by halves within each step, which a product of 8-bit inputs takes as it is once its inputs are
interleaved as well. Of 4 bits, words lie step by step, so that a tile is one run of memory.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

PackedKind = Literal["int4", "int8", "fp8"]
WORD_BITS = 16
PLANE_INPUTS = 64
INT4_ZERO = 8
MAX_TILES = 1024
"""Tiles of one split product: products of more tiles fill every GPU without being split."""


@dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """weight[n, k] = (value[n, k] - zero[k // group_size, n]) * scale[k // group_size, n]."""

    kind: PackedKind
    words: torch.Tensor
    """int16; int4: [steps, N, 64], else [N, steps * 64]. Inputs beyond the last are zero bits."""
    scales: torch.Tensor
    """[G, N / scale_rows], a 16- or 32-bit float."""
    zeros: torch.Tensor | None
    """[G, N / scale_rows] float16; None: 8 for int4, else 0."""
    num_rows: int
    width: int
    """Inputs K."""
    group_size: int
    """Inputs that share a scale, a multiple of 16; at least `padded_width`: one for all."""
    scale_rows: int
    """Rows that share a scale."""
    arrivals: torch.Tensor
    """[MAX_TILES] int32, zero between launches: counts the pieces of a split product."""

    @property
    def bits(self) -> int:
        return 4 if self.kind == "int4" else 8

    @property
    def num_steps(self) -> int:
        return num_steps(self.width, self.bits)

    @property
    def padded_width(self) -> int:
        return self.num_steps * step_inputs(self.bits)

    @property
    def has_row_scales(self) -> bool:
        """Whether one scale serves a whole row."""
        return self.scales.shape[0] == 1

    @property
    def num_bytes(self) -> int:
        zeros = 0 if self.zeros is None else self.zeros.nbytes
        return self.words.nbytes + self.scales.nbytes + zeros

    def bytes_matrix(self) -> torch.Tensor:
        """Of 8 bits: [N, padded_width] int8 or float8_e4m3fn, inputs interleaved within steps."""
        dtype = torch.float8_e4m3fn if self.kind == "fp8" else torch.int8
        return self.words.view(dtype)


def step_inputs(bits: int) -> int:
    return PLANE_INPUTS * WORD_BITS // bits


def num_steps(width: int, bits: int) -> int:
    return -(-width // step_inputs(bits))


def pack_words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """values[N, K] of one byte each, int4 as 0 to 15 -> words as `PackedWeight` holds them."""
    num_rows, width = values.shape
    planes = WORD_BITS // bits
    steps = num_steps(width, bits)
    raw = functional.pad(values.view(torch.uint8), (0, steps * step_inputs(bits) - width))
    by_plane = raw.view(num_rows, steps, planes, PLANE_INPUTS)
    words = torch.zeros(num_rows, steps, PLANE_INPUTS, dtype=torch.int32, device=values.device)
    for plane in range(planes):
        words |= by_plane[:, :, plane].to(torch.int32) << (plane * bits)
    # Not all of 0 to 65535 are int16: wrap the upper half around by hand.
    words = torch.where(words > 32767, words - 65536, words).to(torch.int16)
    if bits == 4:
        return words.permute(1, 0, 2).contiguous()
    return words.flatten(1)


def unpack_words(weight: PackedWeight) -> torch.Tensor:
    """[N, K] float32: the stored values, int4 as 0 to 15."""
    words = weight.words
    if weight.bits == 4:
        words = words.permute(1, 0, 2)
    words = words.reshape(weight.num_rows, weight.num_steps, 1, PLANE_INPUTS)
    shifts = torch.arange(0, WORD_BITS, weight.bits, device=words.device)[:, None]
    raw: torch.Tensor = ((words.to(torch.int32) >> shifts) & (2**weight.bits - 1)).to(torch.uint8)
    raw = raw.flatten(1)[:, : weight.width]
    if weight.kind == "fp8":
        return raw.view(torch.float8_e4m3fn).float()
    return raw.float() if weight.kind == "int4" else raw.view(torch.int8).float()


def interleave(x: torch.Tensor) -> torch.Tensor:
    """x[..., K], K a multiple of 128 -> the order of inputs in which bytes of 8-bit words lie."""
    halves: torch.Tensor = x.unflatten(-1, (-1, 2, PLANE_INPUTS))
    return halves.transpose(-1, -2).flatten(-3)


def join_rows(parts: list[PackedWeight]) -> PackedWeight:
    """Weights of the same inputs, kind and groups, one below the other."""
    first = parts[0]
    if len(parts) == 1:
        return first
    layouts = {(part.kind, part.width, part.group_size) for part in parts}
    if len(layouts) > 1:
        raise ValueError(f"weights of different layouts cannot be joined: {layouts}")
    if any(
        part.num_rows % part.scale_rows or part.scale_rows != first.scale_rows for part in parts
    ):
        parts = [spread_scale_rows(part) for part in parts]
    zeros: torch.Tensor | None = None
    if any(part.zeros is not None for part in parts):
        zeros = torch.cat([_zeros(part) for part in parts], dim=1)
    return PackedWeight(
        kind=first.kind,
        words=torch.cat([part.words for part in parts], dim=1 if first.bits == 4 else 0),
        scales=torch.cat([part.scales for part in parts], dim=1),
        zeros=zeros,
        num_rows=sum(part.num_rows for part in parts),
        width=first.width,
        group_size=first.group_size,
        scale_rows=parts[0].scale_rows,
        arrivals=first.arrivals,
    )


def spread_scale_rows(weight: PackedWeight) -> PackedWeight:
    """The same weight with a scale for each of its rows."""

    def spread(per_block: torch.Tensor) -> torch.Tensor:
        rows = torch.arange(weight.num_rows, device=per_block.device) // weight.scale_rows
        return per_block[:, rows].contiguous()

    return PackedWeight(
        kind=weight.kind,
        words=weight.words,
        scales=spread(weight.scales),
        zeros=None if weight.zeros is None else spread(weight.zeros),
        num_rows=weight.num_rows,
        width=weight.width,
        group_size=weight.group_size,
        scale_rows=1,
        arrivals=weight.arrivals,
    )


def _zeros(weight: PackedWeight) -> torch.Tensor:
    if weight.zeros is not None:
        return weight.zeros
    zero = INT4_ZERO if weight.kind == "int4" else 0
    return torch.full_like(weight.scales, zero, dtype=torch.float16)
