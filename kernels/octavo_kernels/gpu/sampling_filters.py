"""Draws of the rows with top-k, top-p or min-p, exactly and without a sort.

Whether a filter keeps a token depends only on how many tokens are likelier and on their share. So
three kernels: the first counts, for eight thresholds below a row's largest logit, the tokens that
reach them and their share; the second gathers the tokens above the highest threshold that leaves
out no kept token; the third draws among those few: it takes the Gumbel-max winner, asks whether it
is kept, and if not draws again among the tokens likelier than it. The outcome is the winner of
exactly the kept set. A row of too many candidates (a flat distribution) draws over all its tokens.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.noise import gumbel, row_keys
from octavo_kernels.gpu.sampling_passes import (
    NO_TOKEN,
    count_and_share,
    draw,
    from_ordered_bits,
    kth_largest,
    ordered_bits,
)
from octavo_kernels.metadata import SamplingTensors

MAX_CANDIDATES = 2048
"""Tokens that a row gathers at most."""
# Thresholds lie 0.75 * 1.6**i below the largest logit, i from 0 to 7: down to 20 nats.
NUM_THRESHOLDS = tl.constexpr(8)
FIRST_STEP = tl.constexpr(0.75)
LOG2_STEP_RATIO = tl.constexpr(0.6780719051126377)


@dataclass(frozen=True)
class RowParts:
    """How rows are cut, and what the first pass found in each part."""

    num_parts: int
    part_len: int
    best: torch.Tensor
    """[R, parts] float32: the largest logit / temperature of a part of a filtered row."""


@triton.jit
def is_filtered(temperature, top_k, top_p, min_p, NUM_TOKENS: tl.constexpr):
    """Whether a row draws under a filter that can drop something."""
    cuts = ((top_k > 1) & (top_k < NUM_TOKENS)) | (top_p < 1.0) | (min_p > 0.0)
    return cuts & (temperature > 0) & (top_k != 1)


@triton.jit
def _row_maximum(best, row, NUM_PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr):
    part = tl.arange(0, PARTS_BLOCK)
    inside = part < NUM_PARTS
    return tl.max(tl.load(best + row * NUM_PARTS + part, mask=inside, other=float("-inf")), 0)


@triton.jit
def _thresholds(maximum):
    step = tl.arange(0, NUM_THRESHOLDS).to(tl.float32)
    return maximum - FIRST_STEP * tl.exp2(step * LOG2_STEP_RATIO)


@triton.jit
def _profile_kernel(
    logits, best, counts, shares, wholes, temperatures, top_ks, top_ps, min_ps, stride_row,
    NUM_TOKENS: tl.constexpr, NUM_PARTS: tl.constexpr, PART_LEN: tl.constexpr,
    PARTS_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Of one part: for each threshold its tokens and their share; the share of all tokens."""
    program = tl.program_id(0)
    row = (program // NUM_PARTS).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    if is_filtered(temperature, top_k, top_p, tl.load(min_ps + row), NUM_TOKENS):
        maximum = _row_maximum(best, row, NUM_PARTS, PARTS_BLOCK)
        thresholds = _thresholds(maximum)
        # Thresholds first: the tokens then lie along the threads, and each exp is computed once.
        count = tl.zeros((NUM_THRESHOLDS, BLOCK), tl.int32)
        share = tl.zeros((NUM_THRESHOLDS, BLOCK), tl.float32)
        whole = tl.zeros((BLOCK,), tl.float32)
        begin = program % NUM_PARTS * PART_LEN
        end = tl.minimum(begin + PART_LEN, NUM_TOKENS)
        inverse = 1.0 / temperature
        for start in range(begin, end, BLOCK):
            idx = start + tl.arange(0, BLOCK)
            value = tl.load(logits + row * stride_row + idx, mask=idx < end, other=float("-inf"))
            value = value.to(tl.float32) * inverse
            mine = tl.exp(value - maximum)
            reaches = value[None, :] >= thresholds[:, None]
            count += reaches.to(tl.int32)
            share += tl.where(reaches, mine[None, :], 0.0)
            whole += mine
        at = program * NUM_THRESHOLDS + tl.arange(0, NUM_THRESHOLDS)
        tl.store(counts + at, tl.sum(count, 1))
        tl.store(shares + at, tl.sum(share, 1))
        tl.store(wholes + program, tl.sum(whole, 0))


@triton.jit
def _choose_threshold(
    counts, shares, wholes, row, part, maximum, top_k, top_p, min_p,
    NUM_TOKENS: tl.constexpr, NUM_PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr,
):  # fmt: skip
    """(the highest threshold that no kept token is below, or -inf; tokens that reach it; those of
    them in earlier parts; the share of all tokens)."""
    parts = tl.arange(0, PARTS_BLOCK)
    at = (row * NUM_PARTS + parts)[:, None] * NUM_THRESHOLDS
    at += tl.arange(0, NUM_THRESHOLDS)[None, :]
    inside = (parts < NUM_PARTS)[:, None]
    count = tl.load(counts + at, mask=inside, other=0)
    share = tl.sum(tl.load(shares + at, mask=inside, other=0.0), 0)
    whole = tl.load(wholes + row * NUM_PARTS + parts, mask=parts < NUM_PARTS, other=0.0)
    whole = tl.sum(whole, 0)
    thresholds = _thresholds(maximum)
    # What one filter drops no other keeps. Top-p takes its share of the top k: all of them stay.
    if (top_k > 1) & (top_k < NUM_TOKENS):
        enough = tl.sum(count, 0) >= top_k
    elif top_p < 1.0:
        enough = share >= top_p * whole
    else:
        enough = thresholds <= maximum + tl.log(min_p)
    threshold = tl.max(tl.where(enough, thresholds, float("-inf")), 0)
    # By its place: of values that are millions apart several thresholds round to one number.
    steps = tl.arange(0, NUM_THRESHOLDS)
    chosen = (steps == tl.min(tl.where(enough, steps, NUM_THRESHOLDS), 0))[None, :]
    total = tl.sum(tl.sum(tl.where(chosen, count, 0), 1), 0)
    earlier = chosen & (parts < part)[:, None]
    return threshold, total, tl.sum(tl.sum(tl.where(earlier, count, 0), 1), 0), whole


@triton.jit
def _gather_kernel(
    logits, best, counts, shares, wholes, found_values, found_ids,
    temperatures, top_ks, top_ps, min_ps, stride_row,
    NUM_TOKENS: tl.constexpr, NUM_PARTS: tl.constexpr, PART_LEN: tl.constexpr,
    PARTS_BLOCK: tl.constexpr, MAX_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Stores one part's tokens that reach the row's threshold, by ascending id over all parts."""
    program = tl.program_id(0)
    row = (program // NUM_PARTS).to(tl.int64)
    part = program % NUM_PARTS
    temperature = tl.load(temperatures + row)
    top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
    if is_filtered(temperature, top_k, top_p, min_p, NUM_TOKENS):
        maximum = _row_maximum(best, row, NUM_PARTS, PARTS_BLOCK)
        threshold, total, place, _ = _choose_threshold(
            counts, shares, wholes, row, part, maximum, top_k, top_p, min_p,
            NUM_TOKENS, NUM_PARTS, PARTS_BLOCK,
        )  # fmt: skip
        if (total > 0) & (total <= MAX_CANDIDATES):
            begin = part * PART_LEN
            end = tl.minimum(begin + PART_LEN, NUM_TOKENS)
            inverse = 1.0 / temperature
            target = row * MAX_CANDIDATES
            for start in range(begin, end, BLOCK):
                idx = start + tl.arange(0, BLOCK)
                value = tl.load(
                    logits + row * stride_row + idx, mask=idx < end, other=float("-inf")
                )
                value = value.to(tl.float32) * inverse
                reaches = ((value >= threshold) & (idx < end)).to(tl.int32)
                num_here = tl.sum(reaches, 0)
                if num_here > 0:
                    slot = target + place + tl.cumsum(reaches, 0) - 1
                    tl.store(found_values + slot, value, mask=reaches > 0)
                    tl.store(found_ids + slot, idx, mask=reaches > 0)
                    place += num_here


@triton.jit
def _beyond(values, threshold, maximum, strict: tl.constexpr):
    """(number, sum of exp(x - maximum)) of a tile's values above the threshold, or at it."""
    beyond = values > threshold if strict else values >= threshold
    shares = tl.where(beyond, tl.exp(values - maximum), 0.0)
    return tl.sum(beyond.to(tl.int32), 0), tl.sum(shares, 0)


@triton.jit
def _kth_of_tile(values, k, maximum):
    """As `kth_largest`, of a tile in registers."""
    low = ordered_bits(tl.full((), float("-inf"), tl.float32))
    high = ordered_bits(maximum)
    while high > low:
        middle = high - ((high.to(tl.int64) - low.to(tl.int64)) // 2).to(tl.int32)
        found = tl.sum((values >= from_ordered_bits(middle)).to(tl.int32), 0)
        if found >= k:
            low = middle
            if found == k:
                high = middle
        else:
            high = middle - 1
    return from_ordered_bits(low)


@triton.jit
def _winner(noisy, values, ids, above, at_least):
    """(id, value) of the largest noisy value among those > above and >= at_least; lowest id."""
    allowed = (values > above) & (values >= at_least)
    masked = tl.where(allowed, noisy, float("-inf"))
    winner = tl.min(tl.where(allowed & (masked == tl.max(masked, 0)), ids, NO_TOKEN), 0)
    return winner, tl.max(tl.where(ids == winner, values, float("-inf")), 0)


@triton.jit
def _draw_in_tile(values, ids, noisy, maximum, at_least, k, has_top_k, top_p, whole):
    """The noisy winner among the tile's values that all filters keep."""
    if has_top_k & (top_p < 1.0):
        _, whole = _beyond(values, _kth_of_tile(values, k, maximum), maximum, False)
    allowed_share = tl.where(top_p < 1.0, top_p * whole, float("inf"))
    winner, value = _winner(noisy, values, ids, float("-inf"), at_least)
    likelier, share = _beyond(values, value, maximum, True)
    # The likeliest token has nothing above it and is always kept: the loop ends.
    while (likelier > 0) & ((likelier >= k) | (share >= allowed_share)):
        winner, value = _winner(noisy, values, ids, value, at_least)
        likelier, share = _beyond(values, value, maximum, True)
    return winner


@triton.jit
def _draw_in_row(
    logits, inverse, maximum, at_least, k, has_top_k, top_p, whole, key_1, key_2,
    NUM_TOKENS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The same over a whole row in memory."""
    if has_top_k & (top_p < 1.0):
        kth = kth_largest(logits, NUM_TOKENS, inverse, k, maximum, BLOCK)
        _, whole = count_and_share(logits, NUM_TOKENS, inverse, kth, maximum, False, BLOCK)
    allowed_share = tl.where(top_p < 1.0, top_p * whole, float("inf"))
    nothing = float("-inf")
    winner, value, _ = draw(
        logits, 0, NUM_TOKENS, inverse, nothing, at_least, key_1, key_2, True, BLOCK
    )
    likelier, share = count_and_share(logits, NUM_TOKENS, inverse, value, maximum, True, BLOCK)
    while (likelier > 0) & ((likelier >= k) | (share >= allowed_share)):
        winner, value, _ = draw(
            logits, 0, NUM_TOKENS, inverse, value, at_least, key_1, key_2, True, BLOCK
        )
        likelier, share = count_and_share(logits, NUM_TOKENS, inverse, value, maximum, True, BLOCK)
    return winner


@triton.jit
def _choose_kernel(
    logits, ids, best, counts, shares, wholes, found_values, found_ids,
    temperatures, top_ks, top_ps, min_ps, seeds, positions, stride_row,
    NUM_TOKENS: tl.constexpr, NUM_PARTS: tl.constexpr, PARTS_BLOCK: tl.constexpr,
    MAX_CANDIDATES: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program a row: overwrites the id of a filtered row."""
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperatures + row)
    top_k, top_p, min_p = tl.load(top_ks + row), tl.load(top_ps + row), tl.load(min_ps + row)
    if is_filtered(temperature, top_k, top_p, min_p, NUM_TOKENS):
        maximum = _row_maximum(best, row, NUM_PARTS, PARTS_BLOCK)
        _, total, _, whole = _choose_threshold(
            counts, shares, wholes, row, 0, maximum, top_k, top_p, min_p,
            NUM_TOKENS, NUM_PARTS, PARTS_BLOCK,
        )  # fmt: skip
        # No noise makes up for 87 nats, so that a min_p of 0 drops nothing that could win.
        at_least = maximum + tl.log(tl.maximum(min_p, 1.2e-38))
        has_top_k = (top_k > 1) & (top_k < NUM_TOKENS)
        k = tl.where(has_top_k, top_k, NUM_TOKENS)
        key_1, key_2 = row_keys(tl.load(seeds + row), tl.load(positions + row))
        if (total > 0) & (total <= MAX_CANDIDATES):
            slot = tl.arange(0, MAX_CANDIDATES)
            at = row * MAX_CANDIDATES + slot
            values = tl.load(found_values + at, mask=slot < total, other=float("-inf"))
            tokens = tl.load(found_ids + at, mask=slot < total, other=NO_TOKEN)
            noisy = values + gumbel(key_1, key_2, tokens)
            winner = _draw_in_tile(
                values, tokens, noisy, maximum, at_least, k, has_top_k, top_p, whole
            )
        else:
            winner = _draw_in_row(
                logits + row * stride_row, 1.0 / temperature, maximum, at_least, k, has_top_k,
                top_p, whole, key_1, key_2, NUM_TOKENS, BLOCK,
            )  # fmt: skip
        tl.store(ids + row, tl.where(winner == NO_TOKEN, 0, winner).to(tl.int64))


def draw_filtered_rows(
    logits: torch.Tensor, ids: torch.Tensor, parts: RowParts, params: SamplingTensors
) -> None:
    """Overwrites ids[R] of the rows with filters, given the first pass over logits [R, N]."""
    num_rows, num_tokens = logits.shape
    num_programs = num_rows * parts.num_parts

    def scratch(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    counts = scratch(num_programs, NUM_THRESHOLDS.value, dtype=torch.int32)
    shares = scratch(num_programs, NUM_THRESHOLDS.value)
    wholes = scratch(num_programs)
    found_values = scratch(num_rows, MAX_CANDIDATES)
    found_ids = scratch(num_rows, MAX_CANDIDATES, dtype=torch.int32)
    filters = (params.temperature, params.top_k, params.top_p, params.min_p)
    profile = (counts, shares, wholes)
    cut = {
        "NUM_TOKENS": num_tokens,
        "NUM_PARTS": parts.num_parts,
        "PARTS_BLOCK": triton.next_power_of_2(parts.num_parts),
    }
    _profile_kernel[(num_programs,)](
        logits, parts.best, *profile, *filters, logits.stride(0),
        PART_LEN=parts.part_len, BLOCK=512, num_warps=4, **cut,
    )  # fmt: skip
    _gather_kernel[(num_programs,)](
        logits, parts.best, *profile, found_values, found_ids, *filters, logits.stride(0),
        PART_LEN=parts.part_len, MAX_CANDIDATES=MAX_CANDIDATES, BLOCK=2048, num_warps=4, **cut,
    )  # fmt: skip
    _choose_kernel[(num_rows,)](
        logits, ids, parts.best, *profile, found_values, found_ids, *filters,
        params.seeds, params.positions, logits.stride(0),
        MAX_CANDIDATES=MAX_CANDIDATES, BLOCK=2048, num_warps=8, **cut,
    )  # fmt: skip
