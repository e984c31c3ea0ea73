"""The first of the largest numbers of each row: greedy sampling, a thread to a row."""

import numpy as np
from numba import carray

from octavo_kernels.cpu.words import compiled_once, helper, int64s_at, shorts_at

_PIECE_LEN = 1024
"""The largest is found piece by piece, many numbers at a time; its place within one piece only."""


@helper
def _in_order(word):
    """A bfloat16's bits as a whole number that is as large beside others: of a negative number all
    bits but the sign are turned, and -1, which is -0, is 0."""
    return word ^ ((word >> np.int16(15)) & np.int16(0x7FFF))


@compiled_once
def argmax(words, part, num_parts):
    """words: R, N, logits, ids. A row with a NaN gives some id below N."""
    num_rows, size = words[0], words[1]
    ids = carray(int64s_at(words[3]), (num_rows,))
    for row in range(part, num_rows, num_parts):
        logits = carray(shorts_at(words[2] + 2 * row * size), (size,))
        largest, first = np.int16(-0x8000), 0
        for start in range(0, size, _PIECE_LEN):
            here = np.int16(-0x8000)
            for i in range(start, min(start + _PIECE_LEN, size)):
                here = max(here, _in_order(logits[i]))
            if here == -1:
                here = np.int16(0)
            if here > largest:
                largest, first = here, start
        ids[row] = first
        for i in range(first, min(first + _PIECE_LEN, size)):
            here = _in_order(logits[i])
            if here == largest or (here == -1 and largest == 0):
                ids[row] = i
                break
