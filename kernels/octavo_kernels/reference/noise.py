"""Noise without state: Gumbel noise as a hash of (seed, position, token id).

The hash is integer arithmetic modulo 2**32, so every device gives the same 32 bits: a seed means
the same tokens on any replica and after any preemption. int32 tensors stand for unsigned words,
because torch has few unsigned ops; its int32 products wrap.
"""

import torch

SEED_KEY = 0x9E3779B9
POSITION_KEY = 0x85EBCA77
SECOND_KEY = 0xC2B2AE3D
MIX_1 = 0x7FEB352D
MIX_2 = 0x846CA68B
SMALL_U = 2.0**-5
LARGEST_U = 1.0 - 2.0**-24


def hash_u32(seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
    """The hash of each (seed, position, id): [R, N] int32 holding unsigned words.

    seeds[R] and positions[R] int64; token_ids [N] or [R, N], below 2**31.
    """
    key_1, key_2 = row_keys(seeds, positions)
    words = token_ids.to(torch.int32) ^ key_1.unsqueeze(-1)
    _mix_(words)
    words += key_2.unsqueeze(-1)
    return _mix_(words)


def row_keys(seeds: torch.Tensor, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[R] int64 each -> two [R] int32 keys of a row; every bit of both inputs matters to both."""
    key = _low(seeds) ^ _signed(SEED_KEY)
    for word in (_low(seeds >> 32), _low(positions), _low(positions >> 32)):
        key = _mix_(key) + word
    key_1 = _mix_(key + _signed(POSITION_KEY))
    key_2 = _mix_(key_1 ^ _signed(SECOND_KEY))
    # The inputs once more: else key_2 follows from key_1, and rows that collide in one do in both.
    return key_1, _mix_(key_2 + _low(seeds) + _mix_(_low(positions) ^ _signed(SEED_KEY)))


def gumbel_noise(
    seeds: torch.Tensor, positions: torch.Tensor, token_ids: torch.Tensor
) -> torch.Tensor:
    """As `hash_u32`, but [R, N] float32 standard Gumbel noise, between -2.9 and 23."""
    words = hash_u32(seeds, positions, token_ids)
    unit = words.to(torch.float32)
    unit = torch.where(words < 0, unit + 2.0**32, unit)
    unit = ((unit + 0.5) * 2.0**-32).clamp_(max=LARGEST_U)
    # -log(1 - u) loses the bits of a small u, which decide between the likeliest tokens.
    series = torch.full_like(unit, 1 / 6)
    for denominator in (5, 4, 3, 2, 1):
        series = series * unit + 1 / denominator
    series *= unit
    exponential = torch.where(unit < SMALL_U, series, -torch.log(1.0 - unit))
    return -torch.log(exponential)


def _mix_(words: torch.Tensor) -> torch.Tensor:
    """A bijection of 32-bit words: a flipped input bit flips each output bit half of the time."""
    words ^= _shift_right(words, 16)
    words *= _signed(MIX_1)
    words ^= _shift_right(words, 15)
    words *= _signed(MIX_2)
    words ^= _shift_right(words, 16)
    return words


def _shift_right(words: torch.Tensor, bits: int) -> torch.Tensor:
    return (words >> bits).bitwise_and_((1 << (32 - bits)) - 1)


def _low(words: torch.Tensor) -> torch.Tensor:
    """The low 32 bits of int64 values, as int32."""
    low = words & 0xFFFFFFFF
    return torch.where(low >= 2**31, low - 2**32, low).to(torch.int32)


def _signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word
