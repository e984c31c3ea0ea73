"""Passes of one program over a row of values: noisy winner, counts and shares, k-th largest.

A value is values[i] * inverse, and i is its token.
"""

import triton
import triton.language as tl

from octavo_kernels.gpu.noise import gumbel

# All ids are below this, so that it marks "none yet" in a search for the lowest.
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def draw(
    values, begin, end, inverse, above, at_least, key_1, key_2, noisy_row,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(id, its value, noisy value) of the largest noisy value among those > above and >= at_least.

    Without noisy_row the noise is left out. The lowest id wins a tie; without any such value the id
    is NO_TOKEN.
    """
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_value = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_id = tl.full((BLOCK,), NO_TOKEN, tl.int32)
    for start in range(begin, end, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        value = tl.load(values + idx, mask=idx < end, other=float("-inf")).to(tl.float32) * inverse
        noisy = value
        if noisy_row:
            noisy += gumbel(key_1, key_2, idx)
        allowed = (idx < end) & (value > above) & (value >= at_least)
        # Strictly: an earlier id stays on a tie. The first allowed one is taken whatever it holds.
        better = allowed & ((noisy > best) | (best_id == NO_TOKEN))
        best = tl.where(better, noisy, best)
        best_value = tl.where(better, value, best_value)
        best_id = tl.where(better, idx, best_id)
    maximum = tl.max(best, 0)
    winner = tl.min(tl.where(best == maximum, best_id, NO_TOKEN), 0)
    value = tl.max(tl.where(best_id == winner, best_value, float("-inf")), 0)
    return winner, value, maximum


@triton.jit
def count_and_share(
    values, end, inverse, threshold, maximum, STRICT: tl.constexpr, BLOCK: tl.constexpr
):
    """(number, sum of exp(x - maximum)) of values above the threshold, or at it if not STRICT."""
    count = tl.zeros((BLOCK,), tl.int32)
    share = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, end, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        value = tl.load(values + idx, mask=idx < end, other=float("-inf")).to(tl.float32) * inverse
        beyond = value > threshold if STRICT else value >= threshold
        beyond = beyond & (idx < end)
        count += beyond.to(tl.int32)
        share += tl.where(beyond, tl.exp(value - maximum), 0.0)
    return tl.sum(count, 0), tl.sum(share, 0)


@triton.jit
def kth_largest(values, end, inverse, k, maximum, BLOCK: tl.constexpr):
    """A threshold that exactly the k largest values, and those tied with the k-th, reach.

    Bisects the bit patterns of float32, which as integers have the order of the numbers.
    """
    low = ordered_bits(tl.full((), float("-inf"), tl.float32))
    high = ordered_bits(maximum)
    count = end
    while (high > low) & (count != k):
        # Rounded up, in a form that cannot overflow: low then always moves.
        middle = high - ((high.to(tl.int64) - low.to(tl.int64)) // 2).to(tl.int32)
        threshold = from_ordered_bits(middle)
        found, _ = count_and_share(values, end, inverse, threshold, maximum, False, BLOCK)
        if found >= k:
            low = middle
            count = found
        else:
            high = middle - 1
    return from_ordered_bits(low)


@triton.jit
def ordered_bits(x):
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def from_ordered_bits(bits):
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
