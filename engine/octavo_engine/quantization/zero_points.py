"""Tells from the data which of GPTQ's two conventions of zero points a checkpoint follows.

Tools have written either under the other's name, and a wrong reading gives garbage. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from octavo_engine.quantization.bits import unpack_columns, unpack_rows

TRUSTED_SHARE = 0.25
"""How far from a whole number the mean distance may lie, and three standard errors of it."""
STATISTICAL_BITS = 4
"""With 8 bits a step is so small that a mean weight other than zero is many of them."""


@dataclass(frozen=True)
class Sample:
    """The packed tensors of one module."""

    qweight: torch.Tensor
    qzeros: torch.Tensor


def find_zero_offset(samples: Iterable[Sample], bits: int) -> int | None:
    """1 (version 1: stored less one), 0 (version 2), or None where the data do not tell.

    Symmetric checkpoints hold one value everywhere, which tells. Otherwise weights of 4 bits tell:
    they are zero on average, so their mean is the zero point, and what is stored lies one below it
    or at it.
    """
    values, zeros = [], []
    for sample in samples:
        values.append(unpack_rows(sample.qweight, bits))
        zeros.append(unpack_columns(sample.qzeros, bits))
    if not zeros:
        return None
    lowest = min(int(part.min()) for part in zeros)
    highest = max(int(part.max()) for part in zeros)
    middle: int = 2 ** (bits - 1)
    if lowest == highest and lowest in (middle - 1, middle):
        return middle - lowest
    return _offset_by_mean(values, zeros) if bits == STATISTICAL_BITS else None


def _offset_by_mean(values: list[torch.Tensor], zeros: list[torch.Tensor]) -> int | None:
    """Row means need no group order: each column's groups have equally many inputs, nearly."""
    distances = torch.cat(
        [
            value.float().mean(dim=0) - zero.float().mean(dim=0)
            for value, zero in zip(values, zeros, strict=True)
        ]
    )
    mean = float(distances.mean())
    error = float(distances.std()) / len(distances) ** 0.5
    offset = round(mean)
    if offset not in (0, 1) or abs(mean - offset) + 3 * error > TRUSTED_SHARE:
        return None
    return offset
