"""The first of the largest numbers of each row: greedy sampling, a thread to a row."""

from numba import carray

from octavo_kernels.cpu.words import compiled_once, int64s_at, widen, words_at

_PIECE_LEN = 1024
"""The largest is found piece by piece, many numbers at a time; its place within one piece only."""


@compiled_once
def argmax(words, part, num_parts):
    """words: R, N, logits, ids. A row with a NaN gives some id below N."""
    num_rows, size = words[0], words[1]
    ids = carray(int64s_at(words[3]), (num_rows,))
    for row in range(part, num_rows, num_parts):
        logits = carray(words_at(words[2] + 2 * row * size), (size,))
        largest, first = widen(logits[0]), 0
        for start in range(0, size, _PIECE_LEN):
            end = min(start + _PIECE_LEN, size)
            here = widen(logits[start])
            for i in range(start, end):
                here = max(here, widen(logits[i]))
            if here > largest:
                largest, first = here, start
        ids[row] = first
        for i in range(first, min(first + _PIECE_LEN, size)):
            if widen(logits[i]) == largest:
                ids[row] = i
                break
