"""x @ weight.T in bfloat16 by a CPU's matrix unit, and what follows it done on the way out.

The weight is read once a step and is what a step of few rows waits for: it lies in the order in
which it is read, and is fetched ahead. 32 columns of the result are one block, shared out among the
threads. Of a gated network's first half, gate and up meet before either leaves the nearest cache.
"""

import numpy as np
from numba import carray

from octavo_kernels.cpu.lanes import gate_32, multiply_32, narrow_32
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
from octavo_kernels.cpu.words import compiled_once, floats_at, helper, stack_memory

BLOCK_COLUMNS = 32
ROWS_AT_ONCE = 32
SILU, GELU_TANH = 1, 2
_TILE, _TWO_TILES = 1024, 2048
_SUMS_BYTES = 4 * BLOCK_COLUMNS
"""Of a row's sums in a block."""
_two_sums = stack_memory(2 * ROWS_AT_ONCE * _SUMS_BYTES)
_AHEAD_BYTES = 4096
"""Measured from 2,048 to 16,384: up to 4,096 the best; without, half as fast again."""
_CACHED_BYTES = 1024 * 1024
"""Of the weight, which stay in the second cache while the rows of x pass by."""


@helper
def _multiply(x, x_stride, weight, size, out, num_rows, is_first):
    """Up to 32 rows of x with a block of the weight -> out[32, 32] float32."""
    clear(0)
    clear(1)
    if num_rows > 16:
        clear(2)
        clear(3)
    for k in range(0, size, 32):
        if is_first:
            for line in range(_AHEAD_BYTES, _AHEAD_BYTES + _TWO_TILES, 64):
                prefetch(weight + line)
        load(4, x + 2 * k, x_stride)
        load(6, weight, 64)
        load(7, weight + _TILE, 64)
        add_product(0, 4, 6)
        add_product(1, 4, 7)
        if num_rows > 16:
            load(5, x + 16 * x_stride + 2 * k, x_stride)
            add_product(2, 5, 6)
            add_product(3, 5, 7)
        weight += _TWO_TILES
    store(0, out, 128)
    store(1, out + 64, 128)
    if num_rows > 16:
        store(2, out + 2048, 128)
        store(3, out + 2048 + 64, 128)


@helper
def _add_bias(sums_at, bias_at, count):
    if bias_at == 0:
        return
    bias = carray(floats_at(bias_at), (BLOCK_COLUMNS,))
    for row in range(count):
        sums = carray(floats_at(sums_at + row * _SUMS_BYTES), (BLOCK_COLUMNS,))
        for i in range(BLOCK_COLUMNS):
            sums[i] += bias[i]


@helper
def _gate(gates_at, ups_at, count, activation):
    for row in range(count):
        at = gates_at + row * _SUMS_BYTES
        if activation == SILU:
            gate_32(at, np.float32(1), np.float32(0))
        elif activation == GELU_TANH:
            # 0.5 * x * (1 + tanh(u)) is x * sigmoid(2 * u).
            gate_32(at, np.float32(1.5957691216), np.float32(0.044715))
        multiply_32(at, ups_at + row * _SUMS_BYTES)


@compiled_once
def tile_product(words, part, num_parts):
    """words: rows, columns, size; x and the bytes between its rows; weight, bias or 0 (float32), y;
    configurations for full rows and for those left; 0, or up's weight, its bias and activation,
    weight being the gate's."""
    num_rows, num_columns, size = words[0], words[1], words[2]
    x, x_stride, weight, bias, y = words[3], words[4], words[5], words[6], words[7]
    up, up_bias, activation = words[9], words[10], words[11]
    row_bytes, block_bytes = 2 * num_columns, 2 * BLOCK_COLUMNS * size
    sums_at = _two_sums()
    ups_at = sums_at + ROWS_AT_ONCE * _SUMS_BYTES
    num_blocks = num_columns // BLOCK_COLUMNS
    first, last = num_blocks * part // num_parts, num_blocks * (part + 1) // num_parts
    configured = words[8]
    configure(configured)
    num_cached = max(1, _CACHED_BYTES // (block_bytes if up == 0 else 2 * block_bytes))
    for start in range(first, last, num_cached):
        for row in range(0, num_rows, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, num_rows - row)
            wanted = words[8] + (0 if count == ROWS_AT_ONCE else CONFIGURATION_BYTES)
            if wanted != configured:
                configure(wanted)
                configured = wanted
            x_at = x + row * x_stride
            for block in range(start, min(start + num_cached, last)):
                bias_bytes = 4 * BLOCK_COLUMNS * block
                weight_at = weight + block * block_bytes
                _multiply(x_at, x_stride, weight_at, size, sums_at, count, row == 0)
                _add_bias(sums_at, bias + bias_bytes if bias != 0 else 0, count)
                if up != 0:
                    weight_at = up + block * block_bytes
                    _multiply(x_at, x_stride, weight_at, size, ups_at, count, row == 0)
                    _add_bias(ups_at, up_bias + bias_bytes if up_bias != 0 else 0, count)
                    _gate(sums_at, ups_at, count, activation)
                y_at = y + row * row_bytes + 2 * BLOCK_COLUMNS * block
                for idx in range(count):
                    narrow_32(sums_at + idx * _SUMS_BYTES, y_at + idx * row_bytes)
    release()
