"""Chooses one token a row by Gumbel-max in one pass over the logits; with filters in four; no sort.

Whether a filter keeps a token depends only on how many tokens are likelier and on their share. So a
row draws over everything, asks whether the winner is kept, and if not draws again among the tokens
likelier than it: the result is the Gumbel-max winner of exactly the kept set. Two passes first find
a threshold below which nothing can be kept, a third gathers the few tokens above it, and the draws
run over those; where they are many (a flat distribution) they run over the whole row.
"""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import num_cores
from octavo_kernels.gpu.noise import gumbel, row_keys
from octavo_kernels.metadata import SamplingTensors

BLOCK = 4096
MAX_CANDIDATES = 4096
"""Tokens that a row gathers at most."""
NUM_WARPS = 16
# All ids are below this, so that it marks "none yet" in a search for the lowest.
NO_TOKEN = tl.constexpr(2**31 - 1)
# Thresholds tried lie 0.75 * 1.6**i below the largest logit, i from 0 to 7: down to 20 nats.
FIRST_STEP = tl.constexpr(0.75)
LOG2_STEP_RATIO = tl.constexpr(0.6780719051126377)
# Elements that are compared with all eight thresholds at once.
PROFILE_BLOCK = tl.constexpr(1024)


@triton.jit
def _draw(
    values, ids, begin, end, inverse, above, at_least, key_1, key_2,
    HAS_IDS: tl.constexpr, NOISY: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(id, its value, noisy value) of the largest noisy value among those > above and >= at_least.

    A value is values[i] * inverse; its token is i, or ids[i]. The lowest id wins a tie. Without any
    such value the id is 0.
    """
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_value = tl.full((BLOCK,), float("-inf"), tl.float32)
    best_id = tl.full((BLOCK,), NO_TOKEN, tl.int32)
    for start in range(begin, end, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        value = tl.load(values + idx, mask=idx < end, other=float("-inf")).to(tl.float32) * inverse
        token = idx
        if HAS_IDS:
            token = tl.load(ids + idx, mask=idx < end, other=NO_TOKEN)
        noisy = value
        if NOISY:
            noisy += gumbel(key_1, key_2, token)
        allowed = (idx < end) & (value > above) & (value >= at_least)
        # The first allowed one is taken whatever it holds.
        better = (noisy > best) | (best_id == NO_TOKEN) | ((noisy == best) & (token < best_id))
        better = better & allowed
        best = tl.where(better, noisy, best)
        best_value = tl.where(better, value, best_value)
        best_id = tl.where(better, token, best_id)
    maximum = tl.max(best, 0)
    winner = tl.min(tl.where(best == maximum, best_id, NO_TOKEN), 0)
    value = tl.max(tl.where(best_id == winner, best_value, float("-inf")), 0)
    return tl.where(winner == NO_TOKEN, 0, winner), value, maximum


@triton.jit
def _count_and_share(
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
def _kth_largest(values, end, inverse, k, maximum, BLOCK: tl.constexpr):
    """A threshold that exactly the k largest values, and those tied with the k-th, reach.

    Bisects the bit patterns of float32, which as integers have the order of the numbers.
    """
    low = _ordered_bits(tl.full((), float("-inf"), tl.float32))
    high = _ordered_bits(maximum)
    count = end
    while (high > low) & (count != k):
        # Rounded up, in a form that cannot overflow: low then always moves.
        middle = high - ((high.to(tl.int64) - low.to(tl.int64)) // 2).to(tl.int32)
        threshold = _from_ordered_bits(middle)
        found, _ = _count_and_share(values, end, inverse, threshold, maximum, False, BLOCK)
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
def _profile(logits, inverse, maximum, NUM_TOKENS: tl.constexpr, BLOCK: tl.constexpr):
    """Eight thresholds, how many tokens reach each, their shares, and the share of all tokens."""
    step = tl.arange(0, 8)
    thresholds = maximum - FIRST_STEP * tl.exp2(step.to(tl.float32) * LOG2_STEP_RATIO)
    counts = tl.zeros((BLOCK, 8), tl.int32)
    shares = tl.zeros((BLOCK, 8), tl.float32)
    whole = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, NUM_TOKENS, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        value = tl.load(logits + idx, mask=idx < NUM_TOKENS, other=float("-inf"))
        value = value.to(tl.float32) * inverse
        share = tl.exp(value - maximum)
        reaches = value[:, None] >= thresholds[None, :]
        counts += reaches.to(tl.int32)
        shares += tl.where(reaches, share[:, None], 0.0)
        whole += share
    return thresholds, tl.sum(counts, 0), tl.sum(shares, 0), tl.sum(whole, 0)


@triton.jit
def _gather(
    logits, inverse, threshold, found_values, found_ids,
    NUM_TOKENS: tl.constexpr, MAX_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores the tokens that reach the threshold, by ascending id; returns how many there are.

    More than MAX_CANDIDATES are counted but not stored.
    """
    num_found = tl.full((), 0, tl.int32)
    for start in range(0, NUM_TOKENS, BLOCK):
        idx = start + tl.arange(0, BLOCK)
        value = tl.load(logits + idx, mask=idx < NUM_TOKENS, other=float("-inf"))
        value = value.to(tl.float32) * inverse
        reaches = ((value >= threshold) & (idx < NUM_TOKENS)).to(tl.int32)
        num_here = tl.sum(reaches, 0)
        if num_here > 0:
            place = num_found + tl.cumsum(reaches, 0) - 1
            stored = (reaches > 0) & (place < MAX_CANDIDATES)
            tl.store(found_values + place, value, mask=stored)
            tl.store(found_ids + place, idx, mask=stored)
            num_found += num_here
    # The stores of all threads, before any thread reads them.
    tl.debug_barrier()
    return num_found


@triton.jit
def _draw_kept(
    values, ids, end, inverse, maximum, at_least, k, has_top_k, top_p, whole, key_1, key_2,
    HAS_IDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The noisy winner among the values that all filters keep; whole: the share of all tokens."""
    if has_top_k & (top_p < 1.0):
        kth = _kth_largest(values, end, inverse, k, maximum, BLOCK)
        _, whole = _count_and_share(values, end, inverse, kth, maximum, False, BLOCK)
    allowed_share = tl.where(top_p < 1.0, top_p * whole, float("inf"))
    above = float("-inf")
    winner, value, _ = _draw(
        values, ids, 0, end, inverse, above, at_least, key_1, key_2, HAS_IDS, True, BLOCK
    )
    likelier, share = _count_and_share(values, end, inverse, value, maximum, True, BLOCK)
    # The likeliest token has nothing above it and is always kept: the loop ends.
    while (likelier > 0) & ((likelier >= k) | (share >= allowed_share)):
        winner, value, _ = _draw(
            values, ids, 0, end, inverse, value, at_least, key_1, key_2, HAS_IDS, True, BLOCK
        )
        likelier, share = _count_and_share(values, end, inverse, value, maximum, True, BLOCK)
    return winner


@triton.jit
def _draw_filtered(
    logits, inverse, top_k, top_p, min_p, key_1, key_2, found_values, found_ids,
    NUM_TOKENS: tl.constexpr, MAX_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    nothing = float("-inf")
    _, maximum, _ = _draw(
        logits, logits, 0, NUM_TOKENS, inverse, nothing, nothing, key_1, key_2, False, False, BLOCK
    )
    # No noise makes up for 87 nats, so that a min_p of 0 drops nothing that could win.
    at_least = maximum + tl.log(tl.maximum(min_p, 1.2e-38))
    has_top_k = (top_k > 0) & (top_k < NUM_TOKENS)
    k = tl.where(has_top_k, top_k, NUM_TOKENS)
    thresholds, counts, shares, whole = _profile(
        logits, inverse, maximum, NUM_TOKENS, PROFILE_BLOCK
    )
    enough = tl.where(has_top_k, counts >= k, shares >= top_p * whole)
    threshold = tl.max(tl.where(enough, thresholds, nothing), 0)
    if (has_top_k == 0) & (top_p >= 1.0):
        threshold = at_least
    num_found = _gather(
        logits, inverse, threshold, found_values, found_ids, NUM_TOKENS, MAX_CANDIDATES, BLOCK
    )
    if num_found <= MAX_CANDIDATES:
        winner = _draw_kept(
            found_values, found_ids, num_found, 1.0, maximum, at_least, k, has_top_k, top_p, whole,
            key_1, key_2, True, PROFILE_BLOCK,
        )  # fmt: skip
    else:
        winner = _draw_kept(
            logits, found_ids, NUM_TOKENS, inverse, maximum, at_least, k, has_top_k, top_p, whole,
            key_1, key_2, False, BLOCK,
        )  # fmt: skip
    return winner


@triton.jit
def _sample_kernel(
    logits, ids, part_best, temperatures, top_ks, top_ps, min_ps, seeds, positions,
    found_values, found_ids, stride_row,
    NUM_TOKENS: tl.constexpr, NUM_SPLITS: tl.constexpr, SPLIT: tl.constexpr,
    ALL_GREEDY: tl.constexpr, ANY_FILTER: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A program has one row, or one of its NUM_SPLITS parts: ids and part_best are of parts."""
    row = (tl.program_id(0) // NUM_SPLITS).to(tl.int64)
    begin = tl.program_id(0) % NUM_SPLITS * SPLIT
    end = tl.minimum(begin + SPLIT, NUM_TOKENS)
    logits += row * stride_row
    inverse = 1.0
    is_greedy = True
    key_1 = tl.full((), 0, tl.uint32)
    key_2 = key_1
    if not ALL_GREEDY:
        temperature = tl.load(temperatures + row)
        top_k = tl.load(top_ks + row)
        is_greedy = (temperature <= 0) | (top_k == 1)
        inverse = 1.0 / tl.where(is_greedy, 1.0, temperature)
        key_1, key_2 = row_keys(tl.load(seeds + row), tl.load(positions + row))
    nothing = float("-inf")
    if is_greedy:
        winner, _, best = _draw(
            logits, ids, begin, end, 1.0, nothing, nothing, key_1, key_2, False, False, BLOCK
        )
    elif ANY_FILTER:
        winner = _draw_filtered(
            logits, inverse, top_k, tl.load(top_ps + row), tl.load(min_ps + row), key_1, key_2,
            found_values + row * MAX_CANDIDATES, found_ids + row * MAX_CANDIDATES,
            NUM_TOKENS, MAX_CANDIDATES, BLOCK,
        )  # fmt: skip
        best = tl.full((), 0.0, tl.float32)
    else:
        winner, _, best = _draw(
            logits, ids, begin, end, inverse, nothing, nothing, key_1, key_2, False, True, BLOCK
        )
    tl.store(ids + tl.program_id(0), winner.to(tl.int64))
    if NUM_SPLITS > 1:
        tl.store(part_best + tl.program_id(0), best)


@triton.jit
def _merge_kernel(part_ids, part_best, ids, NUM_SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """The best of a row's parts; the lowest id on a tie, and id 0 where no part had a number."""
    row = tl.program_id(0)
    part = tl.arange(0, BLOCK)
    inside = part < NUM_SPLITS
    best = tl.load(part_best + row * NUM_SPLITS + part, mask=inside, other=float("-inf"))
    part_id = tl.load(part_ids + row * NUM_SPLITS + part, mask=inside, other=NO_TOKEN)
    tied = inside & (best == tl.max(best, 0))
    tl.store(ids + row, tl.min(tl.where(tied, part_id, NO_TOKEN), 0))


def sample(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    """As `ops.sample`; logits [R, N] with last stride 1."""
    if logits.dim() != 2 or logits.stride(1) != 1:
        raise ValueError(
            f"sample takes logits [R, N] with last stride 1, got {tuple(logits.shape)}"
        )
    num_rows, num_tokens = logits.shape
    device = logits.device
    ids = torch.empty(num_rows, dtype=torch.int64, device=device)
    if not num_rows:
        return ids
    filtered = params.any_filter and not params.all_greedy
    block = min(BLOCK, triton.next_power_of_2(num_tokens))
    splits = 1 if filtered else _num_splits(num_rows, num_tokens, block, num_cores(device))
    part_ids = (
        ids if splits == 1 else torch.empty(num_rows * splits, dtype=torch.int64, device=device)
    )
    part_best = torch.empty(num_rows * splits, dtype=torch.float32, device=device)
    found = num_rows * MAX_CANDIDATES if filtered else 1
    _sample_kernel[(num_rows * splits,)](
        logits, part_ids, part_best, params.temperature, params.top_k, params.top_p, params.min_p,
        params.seeds, params.positions,
        torch.empty(found, dtype=torch.float32, device=device),
        torch.empty(found, dtype=torch.int32, device=device),
        logits.stride(0),
        NUM_TOKENS=num_tokens,
        NUM_SPLITS=splits,
        SPLIT=triton.cdiv(triton.cdiv(num_tokens, splits), block) * block,
        ALL_GREEDY=params.all_greedy,
        ANY_FILTER=filtered,
        MAX_CANDIDATES=MAX_CANDIDATES,
        BLOCK=block,
        num_warps=NUM_WARPS,
    )  # fmt: skip
    if splits > 1:
        merge_block = triton.next_power_of_2(splits)
        _merge_kernel[(num_rows,)](part_ids, part_best, ids, NUM_SPLITS=splits, BLOCK=merge_block)
    return ids


def _num_splits(num_rows: int, num_tokens: int, block: int, cores: int) -> int:
    """Parts of a row, so that about two programs a core run; a part is at least one block."""
    return max(1, min(2 * cores // num_rows, num_tokens // block))
