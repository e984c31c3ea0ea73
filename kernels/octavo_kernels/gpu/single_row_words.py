"""Parts of `single_row_packed`: words of whole rows to registers, and their products with a token.

A chunk is some steps of some rows, [rows, steps * words of a step]; a thread holds 16 consecutive
bytes of a row, eight threads a step.

A nibble in the top bits of the mantissa of 1.0 is 1 + nibble / 16, one place lower 1 + nibble /
256: two nibbles a shift, each one instruction away from a float32. Inputs of the lower place are
taken 16 times, and what the ones add up to is where the sum starts from.
"""

import triton
import triton.language as tl

ONE = 0x3F800000
"""Bits of 1.0. Kernels get them as an argument: and-ing and or-ing by two constants that the
assembler knows takes it two instructions, else one."""
UPPER = tl.constexpr(0x00780000)
LOWER = tl.constexpr(0x00078000)
# 1 + 8 / 16 and 1 + 8 / 256, for the zero point 8.
UPPER_START = tl.constexpr(1.5)
LOWER_START = tl.constexpr(1.03125)


@triton.jit
def _group_numbers(numbers, row, is_row, first, K: tl.constexpr, COLUMNS: tl.constexpr,
                   GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr):  # fmt: skip
    """Scales or zeros of rows and of the groups of inputs from first[steps] on, one for each of
    a step's eight threads."""
    at = (first // GROUP)[None, :] * COLUMNS + (row // SCALE_ROWS)[:, None]
    inside = is_row[:, None] & (first < K)[None, :]
    found = tl.load(numbers + at, mask=inside, other=0.0).to(tl.float32)[:, :, None]
    return found.broadcast_to(at.shape[0], at.shape[1], 8).reshape(at.shape[0], at.shape[1] * 8)


@triton.jit
def load_int4(
    words, scales, zeros, row, is_row, step, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, HAS_GROUPS: tl.constexpr, HAS_ZEROS: tl.constexpr,
):  # fmt: skip
    """(words, scales and zeros of a step's two groups) of CHUNK steps; words: [STEPS, N, 32]
    int32."""
    place = tl.arange(0, CHUNK * 32)
    at = (step + place // 32).to(tl.int64)[None, :] * (N * 32) + (place % 32)[None, :]
    inside = is_row[:, None] & (place < (STEPS - step) * 32)[None, :]
    word = tl.load(words + at + row[:, None] * 32, mask=inside, other=0)
    scale0 = 1.0
    scale1 = 1.0
    zero0 = 0.0
    zero1 = 0.0
    first = (step + tl.arange(0, CHUNK)) * 256
    if HAS_GROUPS:
        scale0 = _group_numbers(scales, row, is_row, first, K, N, GROUP, 1)
        scale1 = _group_numbers(scales, row, is_row, first + 128, K, N, GROUP, 1)
        if HAS_ZEROS:
            zero0 = _group_numbers(zeros, row, is_row, first, K, N, GROUP, 1)
            zero1 = _group_numbers(zeros, row, is_row, first + 128, K, N, GROUP, 1)
    elif HAS_ZEROS:
        zero0 = tl.load(zeros + row, mask=is_row, other=0.0).to(tl.float32)[:, None]
        zero1 = zero0
    return word, scale0, scale1, zero0, zero1


@triton.jit
def load_fp8(
    words, scales, row, is_row, step, N: tl.constexpr, K: tl.constexpr, STEPS: tl.constexpr,
    CHUNK: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr, HAS_GROUPS: tl.constexpr,
):  # fmt: skip
    """(numbers, scales) of CHUNK steps; words: [N, STEPS * 128] e4m3."""
    place = tl.arange(0, CHUNK * 128)
    inside = is_row[:, None] & (place < (STEPS - step) * 128)[None, :]
    at = row[:, None] * (STEPS * 128) + (step * 128 + place)[None, :]
    number = tl.load(words + at, mask=inside, other=0.0)
    scale = 1.0
    if HAS_GROUPS:
        columns: tl.constexpr = (N + SCALE_ROWS - 1) // SCALE_ROWS
        first = (step + tl.arange(0, CHUNK)) * 128
        scale = _group_numbers(scales, row, is_row, first, K, columns, GROUP, SCALE_ROWS)
    return number, scale


@triton.jit
def _inputs(x, gamma, column, K: tl.constexpr, HAS_NORM: tl.constexpr, OFFSET: tl.constexpr):
    """(inputs times the norm's weight, their squares), both float32."""
    token = tl.load(x + column, mask=column < K, other=0.0).to(tl.float32)
    squares = token * token
    if HAS_NORM:
        scale = tl.load(gamma + column, mask=column < K, other=0.0).to(tl.float32)
        if OFFSET != 0.0:
            scale += OFFSET
        token *= scale
    return token, squares


@triton.jit
def _of_thread(sums, SIZE: tl.constexpr):
    """Adds up what a thread has loaded at once."""
    rows: tl.constexpr = sums.shape[0]
    return tl.sum(sums.reshape(rows, sums.shape[1] // SIZE, SIZE), 2)


@triton.jit
def _four(values):
    """[rows, 4 n] -> four [rows, n]: the places of what a thread has loaded at once."""
    places = values.reshape(values.shape[0], values.shape[1] // 4, 2, 2)
    even, odd = tl.split(places)
    first, third = tl.split(even)
    second, fourth = tl.split(odd)
    return first, second, third, fourth


@triton.jit
def _halves(token):
    """A plane's inputs [1, 2 n] -> those of the lower and of the upper half of each word."""
    return tl.split(token.reshape(1, token.shape[0] // 2, 2))


@triton.jit
def _number(word, one, MASK: tl.constexpr):
    return ((word & MASK) | one).to(tl.float32, bitcast=True)


@triton.jit
def _group_sums(words, one, zero, x, gamma, column, DOWN: tl.constexpr, UP: tl.constexpr,
                K: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_NORM: tl.constexpr,
                OFFSET: tl.constexpr):  # fmt: skip
    """(1 / 16 of the sums over one group of inputs [rows, threads of a row], squares of these).

    words: those of `_four`. DOWN, UP: shifts of a word that bring the group's nibbles of its upper
    and of its lower half to their places: of the first plane to the lower, of the second to the
    upper.
    """
    token0, squares0 = _inputs(x, gamma, column, K, HAS_NORM, OFFSET)
    token1, squares1 = _inputs(x, gamma, column + 64, K, HAS_NORM, OFFSET)
    low0, high0 = _halves(token0 * 16.0)
    low1, high1 = _halves(token1)
    plane0, plane1 = low0 + high0, low1 + high1
    if HAS_ZEROS:
        sums = -_of_thread(plane0 + plane1, 4)
    else:
        sums = -_of_thread(plane0 * LOWER_START + plane1 * UPPER_START, 4)
    lows0, highs0, lows1, highs1 = _four(low0), _four(high0), _four(low1), _four(high1)
    for i in tl.static_range(4):
        moved = words[i] << UP
        sums += _number(moved, one, LOWER) * lows0[i]
        sums += _number(moved, one, UPPER) * lows1[i]
        moved = words[i] >> DOWN
        sums += _number(moved, one, LOWER) * highs0[i]
        sums += _number(moved, one, UPPER) * highs1[i]
    if HAS_ZEROS:
        sums -= _of_thread(plane0 + plane1 * 16.0, 4) * (zero * 0.00390625)
    return sums, squares0 + squares1


@triton.jit
def multiply_int4(
    word, scale0, scale1, zero0, zero1, x, gamma, one, step, K: tl.constexpr,
    CHUNK: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_NORM: tl.constexpr,
    OFFSET: tl.constexpr,
):  # fmt: skip
    """(sums of each thread [rows, CHUNK * 8], squares of the inputs [CHUNK * 64])."""
    place = tl.arange(0, CHUNK * 64)
    column = (step + place // 64) * 256 + place % 64
    words = _four(word)
    sums0, squares0 = _group_sums(words, one, zero0, x, gamma, column, 1, 15, K, HAS_ZEROS,
                                  HAS_NORM, OFFSET)  # fmt: skip
    total = sums0 * (scale0 * 16.0)
    sums1, squares1 = _group_sums(words, one, zero1, x, gamma, column + 128, 9, 7, K, HAS_ZEROS,
                                  HAS_NORM, OFFSET)  # fmt: skip
    total += sums1 * (scale1 * 16.0)
    return total, squares0 + squares1


@triton.jit
def multiply_fp8(
    number, scale, x, gamma, step, K: tl.constexpr, CHUNK: tl.constexpr, HAS_GROUPS: tl.constexpr,
    HAS_NORM: tl.constexpr, OFFSET: tl.constexpr,
):  # fmt: skip
    """As `multiply_int4`."""
    place = tl.arange(0, CHUNK * 64)
    column = (step + place // 64) * 128 + place % 64
    low, low_squares = _inputs(x, gamma, column, K, HAS_NORM, OFFSET)
    high, high_squares = _inputs(x, gamma, column + 64, K, HAS_NORM, OFFSET)
    token = tl.join(low, high).reshape(1, CHUNK * 128)
    total = _of_thread(number.to(tl.float32) * token, 16)
    if HAS_GROUPS:
        total *= scale
    return total, low_squares + high_squares
