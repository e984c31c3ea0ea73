"""Unpacks integers of 4 or 8 bits out of 32-bit words. Pure; knows no format."""

from collections.abc import Sequence

import torch

WORD_BITS = 32


def unpack_rows(words: torch.Tensor, bits: int) -> torch.Tensor:
    """words[R, C] int32 -> [R * 32/bits, C] uint8; the low bits of a word are its first row."""
    values: torch.Tensor = (words[:, None, :] >> _shifts(bits, words.device)[:, None]) & (
        2**bits - 1
    )
    return values.to(torch.uint8).flatten(0, 1)


def unpack_columns(
    words: torch.Tensor, bits: int, order: Sequence[int] | None = None
) -> torch.Tensor:
    """words[R, C] int32 -> [R, C * 32/bits] uint8; the low bits of a word are its first column.

    order: for each column of a word, which of its values it is; None: as they come.
    """
    values: torch.Tensor = (words[:, :, None] >> _shifts(bits, words.device)) & (2**bits - 1)
    if order is not None:
        values = values[:, :, list(order)]
    return values.to(torch.uint8).flatten(1, 2)


def _shifts(bits: int, device: torch.device) -> torch.Tensor:
    return torch.arange(0, WORD_BITS, bits, dtype=torch.int32, device=device)
