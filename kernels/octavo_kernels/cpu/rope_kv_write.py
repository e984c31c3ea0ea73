"""Rotates a step's queries and keys and writes keys and values to their pages, in one pass."""

from numba import carray, njit

from octavo_kernels.cpu.words import (
    FAST,
    compiled_once,
    finite,
    floats_at,
    int64s_at,
    narrow,
    widen,
    words_at,
)


@njit(fastmath=FAST, inline="always")
def _rotate(source, target, cos, sin, head_dim):
    """The first 2 * len(cos) of head_dim dimensions; source may be target."""
    half = cos.shape[0]
    for i in range(half):
        first, second = widen(source[i]), widen(source[half + i])
        target[i] = narrow(first * cos[i] - second * sin[i])
        target[half + i] = narrow(second * cos[i] + first * sin[i])
    for i in range(2 * half, head_dim):
        target[i] = source[i]


@compiled_once
def rope_kv_write(words, part, num_parts):
    """words: T, Hq, Hkv, D, block size, pairs rotated; q, k and v, and of each how many words lie
    between tokens; k_cache, v_cache, cos, sin, positions, slots."""
    num_tokens, num_q, num_kv, head_dim = words[0], words[1], words[2], words[3]
    block_size, half = words[4], words[5]
    positions = carray(int64s_at(words[16]), (num_tokens,))
    slots = carray(int64s_at(words[17]), (num_tokens,))
    for token in range(num_tokens * part // num_parts, num_tokens * (part + 1) // num_parts):
        cos = carray(floats_at(words[14] + 4 * positions[token] * half), (half,))
        sin = carray(floats_at(words[15] + 4 * positions[token] * half), (half,))
        q_at = words[6] + 2 * token * words[9]
        for head in range(num_q):
            q = carray(words_at(q_at + 2 * head * head_dim), (head_dim,))
            _rotate(q, q, cos, sin, head_dim)
        slot = slots[token]
        if slot < 0:
            continue
        page, offset = slot // block_size, slot % block_size
        k_at, v_at = words[7] + 2 * token * words[10], words[8] + 2 * token * words[11]
        for head in range(num_kv):
            row = 2 * ((page * num_kv + head) * block_size + offset) * head_dim
            k = carray(words_at(k_at + 2 * head * head_dim), (head_dim,))
            v = carray(words_at(v_at + 2 * head * head_dim), (head_dim,))
            k_cache = carray(words_at(words[12] + row), (head_dim,))
            v_cache = carray(words_at(words[13] + row), (head_dim,))
            _rotate(k, k_cache, cos, sin, head_dim)
            for i in range(head_dim):
                k_cache[i] = finite(k_cache[i])
                v_cache[i] = finite(v[i])
