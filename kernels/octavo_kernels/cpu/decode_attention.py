"""One query a row against its pages, read where they lie: a thread takes a row's KV head at a time.

The shape of a head is a constant of the compiled code: twice as fast as one that is read.
"""

from collections.abc import Callable

import numpy as np
from numba import carray, njit

from octavo_kernels.cpu.pair_dots import KEYS_AT_ONCE, add_scores, add_weighted
from octavo_kernels.cpu.words import (
    FAST,
    as_number,
    compiled_for,
    exp_not_above_0,
    int32s_at,
    narrow,
    widen,
    words_at,
)


@njit(fastmath=FAST, nogil=True, error_model="numpy")
def _softmax(scores, scale, weights, hidden, visible):
    """Weights of visible keys behind hidden ones, relative to the largest; returns their sum. The
    others up to the last step of KEYS_AT_ONCE weigh nothing."""
    end = hidden + visible
    largest = scores[hidden]
    for i in range(hidden, end):
        largest = max(largest, scores[i])
    total = np.float32(0)
    for i in range(hidden, end):
        weight = narrow(exp_not_above_0((scores[i] - largest) * scale))
        weights[i] = weight
        total += widen(weight)
    for i in range(hidden):
        weights[i] = 0
    for i in range(end, (end + KEYS_AT_ONCE - 1) // KEYS_AT_ONCE * KEYS_AT_ONCE):
        weights[i] = 0
    return total


def make_decode_attention(num_queries: int, head_dim: int) -> Callable[..., None]:
    """For num_queries query heads on a KV head; head_dim is a multiple of 2."""
    row_bytes = 2 * head_dim

    @compiled_for(num_queries, head_dim)
    def decode_attention(words, part, num_parts):
        """words: R, Hkv, block size, columns of the block table, window or 0; q and the words
        between its rows, k_cache, v_cache, block_table, seq_lens, out, scale."""
        num_rows, num_kv, block_size, num_columns = words[0], words[1], words[2], words[3]
        window = words[4]
        table = carray(int32s_at(words[9]), (num_rows, num_columns))
        seq_lens = carray(int32s_at(words[10]), (num_rows,))
        scale = np.float32(as_number(words[12]))
        sums = np.empty((num_queries, 2, head_dim // 2), np.float32)
        scores = np.empty((num_queries, num_columns * block_size), np.float32)
        weights = np.empty((num_queries, num_columns * block_size), np.uint16)
        page_bytes = block_size * row_bytes
        # Rows come longest first: every num_parts-th gives each thread a like share.
        for task in range(part, num_rows * num_kv, num_parts):
            row, head = task // num_kv, task % num_kv
            heads_at = head * num_queries * row_bytes
            q_at = words[5] + 2 * row * words[6] + heads_at
            # From the block of the oldest visible key on; keys beyond the last one are masked.
            seq_len = seq_lens[row]
            first = 0 if window == 0 or window > seq_len else seq_len - window
            first_block = first // block_size
            num_blocks = (seq_len + block_size - 1) // block_size
            for block in range(first_block, num_blocks):
                keys_at = words[7] + (table[row, block] * num_kv + head) * page_bytes
                place = (block - first_block) * block_size
                for key in range(0, min(block_size, seq_len - block * block_size), KEYS_AT_ONCE):
                    out_at = scores.ctypes.data + 4 * (place + key)
                    key_at, stride = keys_at + key * row_bytes, 4 * scores.shape[1]
                    add_scores(num_queries, head_dim, q_at, key_at, out_at, stride)
            hidden, visible = first - first_block * block_size, seq_len - first
            totals = np.empty(num_queries, np.float32)
            for query in range(num_queries):
                totals[query] = _softmax(scores[query], scale, weights[query], hidden, visible)
            sums[:] = 0
            for block in range(first_block, num_blocks):
                values_at = words[8] + (table[row, block] * num_kv + head) * page_bytes
                place = (block - first_block) * block_size
                for key in range(0, min(block_size, seq_len - block * block_size), KEYS_AT_ONCE):
                    weights_at = weights.ctypes.data + 2 * (place + key)
                    value_at, stride = values_at + key * row_bytes, 2 * weights.shape[1]
                    sums_at = sums.ctypes.data
                    add_weighted(num_queries, head_dim, sums_at, value_at, weights_at, stride)
            out_at = words[11] + row * num_kv * num_queries * row_bytes + heads_at
            out = carray(words_at(out_at), (num_queries, head_dim // 2, 2))
            for query in range(num_queries):
                inverse = np.float32(1) / totals[query]
                for i in range(head_dim // 2):
                    out[query, i, 0] = narrow(sums[query, 0, i] * inverse)
                    out[query, i, 1] = narrow(sums[query, 1, i] * inverse)

    kernel: Callable[..., None] = decode_attention
    return kernel
