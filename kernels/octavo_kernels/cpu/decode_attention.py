"""One query a row against its pages, read where they lie: a thread takes a row's KV head at a time.

Four keys at once keep the sums apart and the queries in registers. The shape of a head is a
constant of the compiled code: twice as fast as one that is read.
"""

from collections.abc import Callable

import numpy as np
from numba import carray, njit

from octavo_kernels.cpu.words import (
    FAST,
    as_number,
    compiled_once,
    exp_not_above_0,
    int32s_at,
    narrow,
    widen,
    words_at,
)


@njit(fastmath=FAST, nogil=True, error_model="numpy")
def _softmax(scores, num_keys, num_scores):
    """In place over num_keys scores; those up to num_scores become 0."""
    largest = scores[0]
    for i in range(1, num_keys):
        largest = max(largest, scores[i])
    total = np.float32(0)
    for i in range(num_keys):
        weight = exp_not_above_0(scores[i] - largest)
        scores[i] = weight
        total += weight
    inverse = np.float32(1) / total
    for i in range(num_keys):
        scores[i] *= inverse
    for i in range(num_keys, num_scores):
        scores[i] = 0


def make_decode_attention(num_queries: int, head_dim: int) -> Callable[..., None]:
    """For num_queries query heads on a KV head."""
    zero = np.float32(0)

    @compiled_once
    def decode_attention(words, part, num_parts):
        """words: R, Hkv, block size, columns of the block table, window or 0; q and the words
        between its rows, k_cache, v_cache, block_table, seq_lens, out, scale."""
        num_rows, num_kv, block_size, num_columns = words[0], words[1], words[2], words[3]
        window = words[4]
        table = carray(int32s_at(words[9]), (num_rows, num_columns))
        seq_lens = carray(int32s_at(words[10]), (num_rows,))
        scale = np.float32(as_number(words[12]))
        q = np.empty((num_queries, head_dim), np.float32)
        sums = np.empty((num_queries, head_dim), np.float32)
        scores = np.empty((num_queries, num_columns * block_size), np.float32)
        page_bytes = 2 * block_size * head_dim
        # Rows come longest first: every num_parts-th gives each thread a like share.
        for task in range(part, num_rows * num_kv, num_parts):
            row, head = task // num_kv, task % num_kv
            heads_at = 2 * head * num_queries * head_dim
            source = carray(
                words_at(words[5] + 2 * row * words[6] + heads_at), (num_queries, head_dim)
            )
            for query in range(num_queries):
                for i in range(head_dim):
                    q[query, i] = widen(source[query, i]) * scale
                    sums[query, i] = 0
            seq_len = seq_lens[row]
            # From the block of the oldest visible key on, in fours: the tail is masked.
            first = 0 if window == 0 or window > seq_len else seq_len - window
            first_block = first // block_size
            base = first_block * block_size
            num_blocks = (seq_len + block_size - 1) // block_size
            for block in range(first_block, num_blocks):
                at = (table[row, block] * num_kv + head) * page_bytes
                keys = carray(words_at(words[7] + at), (block_size, head_dim))
                num_keys = min(block_size, (seq_len - block * block_size + 3) // 4 * 4)
                for key in range(0, num_keys, 4):
                    k0, k1, k2, k3 = keys[key], keys[key + 1], keys[key + 2], keys[key + 3]
                    for query in range(num_queries):
                        s0, s1, s2, s3 = zero, zero, zero, zero
                        for i in range(head_dim):
                            x = q[query, i]
                            s0 += x * widen(k0[i])
                            s1 += x * widen(k1[i])
                            s2 += x * widen(k2[i])
                            s3 += x * widen(k3[i])
                        target = scores[query]
                        place = block * block_size - base + key
                        target[place] = s0
                        target[place + 1] = s1
                        target[place + 2] = s2
                        target[place + 3] = s3
            hidden, visible = first - base, seq_len - first
            for query in range(num_queries):
                for i in range(hidden):
                    scores[query, i] = 0
                _softmax(scores[query, hidden:], visible, (hidden + visible + 3) // 4 * 4 - hidden)
            for block in range(first_block, num_blocks):
                at = (table[row, block] * num_kv + head) * page_bytes
                values = carray(words_at(words[8] + at), (block_size, head_dim))
                num_keys = min(block_size, (seq_len - block * block_size + 3) // 4 * 4)
                for key in range(0, num_keys, 4):
                    v0, v1, v2, v3 = values[key], values[key + 1], values[key + 2], values[key + 3]
                    place = block * block_size - base + key
                    for query in range(num_queries):
                        w0, w1 = scores[query, place], scores[query, place + 1]
                        w2, w3 = scores[query, place + 2], scores[query, place + 3]
                        for i in range(head_dim):
                            sums[query, i] += (
                                w0 * widen(v0[i])
                                + w1 * widen(v1[i])
                                + w2 * widen(v2[i])
                                + w3 * widen(v3[i])
                            )
            out = carray(
                words_at(words[11] + 2 * row * num_kv * num_queries * head_dim + heads_at),
                (num_queries, head_dim),
            )
            for query in range(num_queries):
                for i in range(head_dim):
                    out[query, i] = narrow(sums[query, i])

    kernel: Callable[..., None] = decode_attention
    return kernel
