"""One query a row against its pages by a CPU's matrix unit; a thread takes some queries of a row
that share a KV head at a time.

Keys are 16 rows of a tile as they lie in their page. So are values: a lane of a tile is two
neighbouring dimensions, and the weights stand beside zeros, once for the first of the two and once
for the second, where the unit would have pairs of keys. What a task reads next is fetched ahead.
"""

from collections.abc import Callable

import numpy as np
from numba import carray

from octavo_kernels.cpu.softmax_lanes import largest_of_16, spread_scores, sum_of_16, weigh_16
from octavo_kernels.cpu.tiles import (
    CONFIGURATION_BYTES,
    add_product,
    clear,
    configure,
    load,
    prefetch,
    release,
    store,
)
from octavo_kernels.cpu.words import (
    as_number,
    compiled_for,
    helper,
    int32s_at,
    narrow,
    words_at,
)

KEYS_AT_ONCE = 16
CHUNKS_AT_ONCE = 4
"""Of 32 dimensions."""
MAX_QUERIES_AT_ONCE = 8
_LINE = 64
"""Bytes of a tile's row, and of a line of memory."""


def queries_at_once(num_queries: int) -> int:
    """Of the query heads on a KV head, how many one task takes: all have the same share."""
    return max(n for n in range(1, MAX_QUERIES_AT_ONCE + 1) if num_queries % n == 0)


def configuration(num_queries: int) -> np.ndarray:
    """Tiles 0 to 3 are sums of values, 4 scores, 5 keys or values, 6 queries, 7 weights."""
    count = queries_at_once(num_queries)
    words = np.zeros(CONFIGURATION_BYTES, np.uint8)
    words[0] = 1
    bytes_in_row, rows = words[16:32].view(np.uint16), words[48:56]
    rows[:] = [2 * count] * 4 + [KEYS_AT_ONCE] * 3 + [2 * count]
    bytes_in_row[:] = [_LINE] * 4 + [4 * count, _LINE, 4 * count, _LINE]
    return words


@helper
def _fetch(address, num_bytes):
    for line in range(0, num_bytes, _LINE):
        prefetch(address + line)


@helper
def _page_at(words, task, block, shape):
    """Where the page of a task's block lies in the caches, in bytes."""
    tasks_of_row, tasks_of_head, row_bytes = shape
    row, head = task // tasks_of_row, task % tasks_of_row // tasks_of_head
    block_id = carray(int32s_at(words[9]), (words[0], words[3]))[row, block]
    return (block_id * words[1] + head) * words[2] * row_bytes


@helper
def _turn(q_at, turned):
    """The queries side by side: turned[head_dim / 2, queries] lanes of two dimensions."""
    num_lanes, count = turned.shape
    for query in range(count):
        q = carray(int32s_at(q_at + 4 * query * num_lanes), (num_lanes,))
        for lane in range(num_lanes):
            turned[lane, query] = q[lane]


@helper
def _score(keys_at, row_bytes, turned_at, count, lanes_at):
    """[16 keys, queries] at lanes_at."""
    clear(4)
    for chunk in range(row_bytes // _LINE):
        load(5, keys_at + chunk * _LINE, row_bytes)
        load(6, turned_at + chunk * _LINE * count, 4 * count)
        add_product(4, 5, 6)
    store(4, lanes_at, 4 * count)


@helper
def _weigh(scores, maxima, num_groups, weights, totals):
    """weights[group of keys, 2 * queries, 16], the first of a query's two rows for the lower halves
    of lanes; totals[queries, 16]."""
    count, max_keys = scores.shape
    totals[:] = 0
    for query in range(count):
        largest = largest_of_16(maxima.ctypes.data + _LINE * query)
        totals_at = totals.ctypes.data + _LINE * query
        for group in range(num_groups):
            scores_at = scores.ctypes.data + 4 * (query * max_keys + group * KEYS_AT_ONCE)
            weights_at = weights.ctypes.data + 2 * _LINE * (group * count + query)
            weigh_16(scores_at, weights_at, totals_at, largest)


@helper
def _add_values(values_at, row_bytes, weights_at, num_chunks):
    """Of 16 keys, for up to four chunks of 32 dimensions."""
    load(7, weights_at, _LINE)
    load(5, values_at, row_bytes)
    add_product(0, 7, 5)
    if num_chunks > 1:
        load(5, values_at + _LINE, row_bytes)
        add_product(1, 7, 5)
    if num_chunks > 2:
        load(5, values_at + 2 * _LINE, row_bytes)
        add_product(2, 7, 5)
    if num_chunks > 3:
        load(5, values_at + 3 * _LINE, row_bytes)
        add_product(3, 7, 5)


@helper
def _store_sums(sums_at, row_bytes, num_chunks):
    store(0, sums_at, row_bytes)
    if num_chunks > 1:
        store(1, sums_at + _LINE, row_bytes)
    if num_chunks > 2:
        store(2, sums_at + 2 * _LINE, row_bytes)
    if num_chunks > 3:
        store(3, sums_at + 3 * _LINE, row_bytes)


@helper
def _sum_values(words, task, following, start, end, shape, weights, sums_at):
    """Of keys start to end, with weights[group of keys, 2 * queries, 16]; the following task's keys
    are fetched meanwhile."""
    block_size, row_bytes = words[2], shape[2]
    num_chunks = row_bytes // _LINE
    for chunk in range(0, num_chunks, CHUNKS_AT_ONCE):
        clear(0)
        clear(1)
        clear(2)
        clear(3)
        weights_at = weights.ctypes.data
        for key in range(start, end, KEYS_AT_ONCE):
            block, place = key // block_size, key % block_size * row_bytes
            at = words[8] + _page_at(words, task, block, shape) + place + chunk * _LINE
            _add_values(at, row_bytes, weights_at, num_chunks - chunk)
            weights_at += weights.shape[1] * _LINE
            at = words[7] + _page_at(words, following, block, shape) + place
            _fetch(at, KEYS_AT_ONCE * row_bytes)
        _store_sums(sums_at + chunk * _LINE, row_bytes, num_chunks - chunk)


@helper
def _write(sums, totals, out_at):
    """sums[queries, even and odd dimensions, head_dim / 2]."""
    count, _, half = sums.shape
    out = carray(words_at(out_at), (count, half, 2))
    for query in range(count):
        inverse = np.float32(1) / sum_of_16(totals.ctypes.data + _LINE * query)
        for i in range(half):
            out[query, i, 0] = narrow(sums[query, 0, i] * inverse)
            out[query, i, 1] = narrow(sums[query, 1, i] * inverse)


def make_tile_attention(num_queries: int, head_dim: int) -> Callable[..., None]:
    """For num_queries query heads on a KV head; head_dim is a multiple of 32."""
    row_bytes = 2 * head_dim
    count = queries_at_once(num_queries)
    tasks_of_head = num_queries // count

    @compiled_for(num_queries, head_dim)
    def tile_attention(words, part, num_parts):
        """words: R, Hkv, block size, columns of the block table, window or 0; q and the words
        between its rows, k_cache, v_cache, block_table, seq_lens, out, scale, configuration."""
        num_rows, block_size, window = words[0], words[2], words[4]
        tasks_of_row = words[1] * tasks_of_head
        shape = (tasks_of_row, tasks_of_head, row_bytes)
        seq_lens = carray(int32s_at(words[10]), (num_rows,))
        scale = np.float32(as_number(words[12]))
        max_groups = words[3] * block_size // KEYS_AT_ONCE
        turned = np.empty((head_dim // 2, count), np.int32)
        lanes = np.empty((KEYS_AT_ONCE, count), np.float32)
        scores = np.empty((count, max_groups * KEYS_AT_ONCE), np.float32)
        weights = np.empty((max_groups, 2 * count, KEYS_AT_ONCE), np.int32)
        maxima, totals = np.empty((2, count, KEYS_AT_ONCE), np.float32)
        sums = np.empty((count, 2, head_dim // 2), np.float32)
        configure(words[13])
        # Rows come longest first: every num_parts-th gives each thread a like share.
        for task in range(part, num_rows * tasks_of_row, num_parts):
            row, heads_at = task // tasks_of_row, task % tasks_of_row * count * row_bytes
            _turn(words[5] + 2 * row * words[6] + heads_at, turned)
            # From the block of the oldest visible key on; keys beyond the last one are masked.
            seq_len = seq_lens[row]
            first = 0 if window == 0 or window > seq_len else seq_len - window
            start = first // block_size * block_size
            maxima[:] = -np.inf
            for key in range(start, seq_len, KEYS_AT_ONCE):
                at = _page_at(words, task, key // block_size, shape) + key % block_size * row_bytes
                _score(words[7] + at, row_bytes, turned.ctypes.data, count, lanes.ctypes.data)
                _fetch(words[8] + at, KEYS_AT_ONCE * row_bytes)
                scores_at = scores.ctypes.data + 4 * (key - start)
                spread_scores(
                    count, lanes.ctypes.data, scores_at, 4 * scores.shape[1], maxima.ctypes.data,
                    scale, first - key, seq_len - key,
                )  # fmt: skip
            num_groups = (seq_len - start + KEYS_AT_ONCE - 1) // KEYS_AT_ONCE
            _weigh(scores, maxima, num_groups, weights, totals)
            following = min(task + num_parts, num_rows * tasks_of_row - 1)
            sums_at = sums.ctypes.data
            _sum_values(words, task, following, start, seq_len, shape, weights, sums_at)
            _write(sums, totals, words[11] + row * tasks_of_row * count * row_bytes + heads_at)
        release()

    kernel: Callable[..., None] = tile_attention
    return kernel
