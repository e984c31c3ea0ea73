"""Chooses one token a row in one pass over the logits, a few where filters are on; no sort.

Whether a filter keeps a token depends only on how many tokens are likelier and on their share. So
a row draws by Gumbel-max over everything, asks whether the winner is kept, and if not draws again
among the tokens likelier than it: the result is the Gumbel-max winner of exactly the kept set,
after one or two draws for usual distributions and about log2(N / k) for a flat one.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.noise import gumbel, row_keys
from octavo_kernels.metadata import SamplingTensors

BLOCK = 4096
# All ids are below this, so that it marks "none yet" in a search for the lowest.
NO_TOKEN = tl.constexpr(2**31 - 1)


@triton.jit
def _draw(
    logits,
    inverse_temperature,
    above,
    at_least,
    key_1,
    key_2,
    NUM_TOKENS: tl.constexpr,
    NOISY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(id, scaled logit) of the largest noisy logit among tokens > above and >= at_least."""
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_scaled = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_id = tl.full((BLOCK,), NO_TOKEN, tl.int32)
    for start in range(0, NUM_TOKENS, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + token, mask=token < NUM_TOKENS, other=float("-inf"))
        scaled = logit.to(tl.float32) * inverse_temperature
        noisy = scaled
        if NOISY:
            noisy += gumbel(key_1, key_2, token)
        allowed = (token < NUM_TOKENS) & (scaled > above) & (scaled >= at_least)
        # Strictly: an earlier id stays on a tie. The first allowed one is taken whatever it holds.
        better = allowed & ((noisy > best) | (best_id == NO_TOKEN))
        best = tl.where(better, noisy, best)
        best_scaled = tl.where(better, scaled, best_scaled)
        best_id = tl.where(better, token, best_id)
    maximum = tl.max(best, 0)
    winner = tl.min(tl.where(best == maximum, best_id, NO_TOKEN), 0)
    scaled = tl.max(tl.where(best_id == winner, best_scaled, float("-inf")), 0)
    # A row of nothing but -inf or NaN gives an id of the vocabulary all the same.
    return tl.where(winner == NO_TOKEN, 0, winner), scaled


@triton.jit
def _count_and_share(
    logits,
    inverse_temperature,
    threshold,
    maximum,
    strict,
    NUM_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """(number, sum of exp(x - maximum)) of tokens above the threshold; or at it, if not strict."""
    count = tl.zeros((BLOCK,), tl.int32)
    share = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, NUM_TOKENS, BLOCK):
        token = start + tl.arange(0, BLOCK)
        logit = tl.load(logits + token, mask=token < NUM_TOKENS, other=float("-inf"))
        scaled = logit.to(tl.float32) * inverse_temperature
        beyond = (scaled > threshold) | ((scaled == threshold) & (strict == 0))
        beyond = beyond & (token < NUM_TOKENS)
        count += beyond.to(tl.int32)
        share += tl.where(beyond, tl.exp(scaled - maximum), 0.0)
    return tl.sum(count, 0), tl.sum(share, 0)


@triton.jit
def _kth_largest(
    logits, inverse_temperature, k, maximum, NUM_TOKENS: tl.constexpr, BLOCK: tl.constexpr
):
    """A threshold that exactly the k likeliest tokens, and those tied with the k-th, reach.

    Bisects the bit patterns of float32, which as integers have the order of the numbers.
    """
    low = _ordered_bits(tl.full((), float("-inf"), tl.float32))
    high = _ordered_bits(maximum)
    count = tl.full((), NUM_TOKENS, tl.int32)
    while (high > low) & (count != k):
        # Rounded up, in a form that cannot overflow: low then always moves.
        middle = high - ((high.to(tl.int64) - low.to(tl.int64)) // 2).to(tl.int32)
        threshold = _from_ordered_bits(middle)
        found, _ = _count_and_share(
            logits, inverse_temperature, threshold, maximum, 0, NUM_TOKENS, BLOCK
        )
        if found >= k:
            low = middle
            count = found
        else:
            high = middle - 1
    return _from_ordered_bits(low)


@triton.jit
def _ordered_bits(x):
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _from_ordered_bits(bits):
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _sample_kernel(
    logits,
    ids,
    temperatures,
    top_ks,
    top_ps,
    min_ps,
    seeds,
    positions,
    stride_row,
    NUM_TOKENS: tl.constexpr,
    ALL_GREEDY: tl.constexpr,
    ANY_FILTER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * stride_row
    nothing = float("-inf")
    no_key = tl.full((), 0, tl.uint32)
    if ALL_GREEDY:
        winner, _ = _draw(logits, 1.0, nothing, nothing, no_key, no_key, NUM_TOKENS, False, BLOCK)
    else:
        temperature = tl.load(temperatures + row)
        top_k = tl.load(top_ks + row)
        if (temperature <= 0) | (top_k == 1):
            winner, _ = _draw(
                logits, 1.0, nothing, nothing, no_key, no_key, NUM_TOKENS, False, BLOCK
            )
        else:
            inverse = 1.0 / temperature
            key_1, key_2 = row_keys(tl.load(seeds + row), tl.load(positions + row))
            if ANY_FILTER:
                winner = _draw_filtered(
                    logits, inverse, top_k, tl.load(top_ps + row), tl.load(min_ps + row),
                    key_1, key_2, NUM_TOKENS, BLOCK,
                )  # fmt: skip
            else:
                winner, _ = _draw(
                    logits, inverse, nothing, nothing, key_1, key_2, NUM_TOKENS, True, BLOCK
                )
    tl.store(ids + row, winner.to(tl.int64))


@triton.jit
def _draw_filtered(
    logits,
    inverse,
    top_k,
    top_p,
    min_p,
    key_1,
    key_2,
    NUM_TOKENS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The noisy winner among the tokens that top_k (0: all), top_p and min_p keep."""
    has_top_k = (top_k > 0) & (top_k < NUM_TOKENS)
    k = tl.where(has_top_k, top_k, NUM_TOKENS)
    nothing = float("-inf")
    _, maximum = _draw(logits, inverse, nothing, nothing, key_1, key_2, NUM_TOKENS, False, BLOCK)
    # No noise makes up for 87 nats, so that a min_p of 0 drops nothing that could win.
    at_least = maximum + tl.log(tl.maximum(min_p, 1.2e-38))
    allowed_share = tl.full((), float("inf"), tl.float32)
    if top_p < 1.0:
        least = tl.full((), float("-inf"), tl.float32)
        if has_top_k:
            least = _kth_largest(logits, inverse, k, maximum, NUM_TOKENS, BLOCK)
        _, whole = _count_and_share(logits, inverse, least, maximum, 0, NUM_TOKENS, BLOCK)
        allowed_share = top_p * whole
    winner, scaled = _draw(
        logits, inverse, nothing, at_least, key_1, key_2, NUM_TOKENS, True, BLOCK
    )
    if has_top_k | (top_p < 1.0):
        likelier, share = _count_and_share(logits, inverse, scaled, maximum, 1, NUM_TOKENS, BLOCK)
        # The likeliest token has nothing above it and is always kept: the loop ends.
        while (likelier > 0) & ((likelier >= k) | (share >= allowed_share)):
            winner, scaled = _draw(
                logits, inverse, scaled, at_least, key_1, key_2, NUM_TOKENS, True, BLOCK
            )
            likelier, share = _count_and_share(
                logits, inverse, scaled, maximum, 1, NUM_TOKENS, BLOCK
            )
    return winner


def sample(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """As `ops.sample`; logits [R, N] with last stride 1."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(
            f"sample takes logits [R, N] with last stride 1, got {tuple(logits.shape)}"
        )
    num_rows, num_tokens = logits.shape
    ids = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _sample_kernel[(num_rows,)](
            logits,
            ids,
            params.temperature,
            params.top_k,
            params.top_p,
            params.min_p,
            params.seeds,
            params.positions,
            logits.stride(0),
            NUM_TOKENS=num_tokens,
            ALL_GREEDY=params.all_greedy,
            ANY_FILTER=params.any_filter,
            BLOCK=min(BLOCK, triton.next_power_of_2(num_tokens)),
            num_warps=16,
        )
    return ids
