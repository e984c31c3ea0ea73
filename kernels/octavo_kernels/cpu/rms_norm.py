"""RMS normalisation in one pass, with an optional residual added first."""

import numpy as np
from numba import carray

from octavo_kernels.cpu.words import as_number, compiled_once, narrow, widen, words_at


@compiled_once
def rms_norm(words, part, num_parts):
    """words: T, H, x, weight, y, residual or 0, total, eps, weight offset."""
    num_tokens, size = words[0], words[1]
    x = carray(words_at(words[2]), (num_tokens, size))
    weight = carray(words_at(words[3]), (size,))
    y = carray(words_at(words[4]), (num_tokens, size))
    has_residual = words[5] != 0
    residual = carray(words_at(words[5]), (num_tokens, size))
    total = carray(words_at(words[6]), (num_tokens, size))
    eps, offset = np.float32(as_number(words[7])), np.float32(as_number(words[8]))
    for token in range(num_tokens * part // num_parts, num_tokens * (part + 1) // num_parts):
        source, target = x[token], y[token]
        if has_residual:
            added, summed = residual[token], total[token]
            for i in range(size):
                summed[i] = narrow(widen(source[i]) + widen(added[i]))
            source = summed
        squares = np.float32(0)
        for i in range(size):
            value = widen(source[i])
            squares += value * value
        inverse = np.float32(1) / np.sqrt(squares / np.float32(size) + eps)
        for i in range(size):
            target[i] = narrow(widen(source[i]) * inverse * (widen(weight[i]) + offset))
