"""Vector code of attention in bfloat16, written out for one shape of heads: sums of products of
pairs, which one instruction does where the CPU has it (AVX512-BF16) and a few do elsewhere.

A lane is 32 bits: two neighbouring bfloat16 numbers, the first in the lower half. The two functions
for kernels take constants first, then addresses and distances in bytes.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo_kernels.cpu.words import has_bfloat16

KEYS_AT_ONCE = 8
LANE_BYTES = 4
_MAX_LANES = 16
_I32, _I64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


@intrinsic(prefer_literal=True)
def add_scores(typing, num_queries, head_dim, q, keys, out, out_stride):
    """Products of KEYS_AT_ONCE rows of keys with each query, as float32 side by side; a query's
    stand out_stride bytes behind the last one's."""

    def emit(builder, q, keys, out, out_stride, num_queries, head_dim):
        row_bytes = 2 * head_dim
        for query in range(num_queries):
            for first in range(0, KEYS_AT_ONCE, 4):
                rows = [(key * row_bytes) for key in range(first, first + 4)]
                total = _four_products(builder, q, query * row_bytes, keys, rows, head_dim)
                _store(builder, total, out, first * LANE_BYTES)
            out = builder.add(out, out_stride)

    return _emitting(emit, num_queries, head_dim, 4)


@intrinsic(prefer_literal=True)
def add_weighted(typing, num_queries, head_dim, sums, values, weights, weights_stride):
    """Adds KEYS_AT_ONCE rows of values, each times its weight, to the float32 sums of each query.

    Weights are bfloat16 side by side; a query's stand weights_stride bytes behind the last one's. A
    query's sums are those of its even dimensions, then those of the odd ones.
    """

    def emit(builder, sums, values, weights, weights_stride, num_queries, head_dim):
        row_bytes = half_bytes = 2 * head_dim
        for lane, width in _vectors(head_dim):
            pairs = [
                _paired_rows(builder, values, key * row_bytes + lane * LANE_BYTES, row_bytes, width)
                for key in range(0, KEYS_AT_ONCE, 2)
            ]
            weights_at = weights
            for query in range(num_queries):
                at = query * 2 * half_bytes + lane * LANE_BYTES
                even = _load(builder, sums, at, _FLOAT, width)
                odd = _load(builder, sums, at + half_bytes, _FLOAT, width)
                for idx, (evens, odds) in enumerate(pairs):
                    two = builder.load(_pointer(builder, weights_at, idx * LANE_BYTES, _I32))
                    weight = _splat(builder, two, width)
                    even = _add_pairs(builder, even, evens, weight)
                    odd = _add_pairs(builder, odd, odds, weight)
                _store(builder, even, sums, at)
                _store(builder, odd, sums, at + half_bytes)
                weights_at = builder.add(weights_at, weights_stride)

    return _emitting(emit, num_queries, head_dim, 4)


def _emitting(emit, num_queries, head_dim, num_addresses: int):
    """What an intrinsic returns whose code depends on the two constants."""
    signature = types.void(num_queries, head_dim, *[types.int64] * num_addresses)

    def generate(context, builder, signature, arguments):
        constants = [kind.literal_value for kind in signature.args[:2]]
        emit(builder, *arguments[2:], *constants)
        return context.get_dummy_value()

    return signature, generate


def _four_products(builder, q, q_offset: int, keys, row_offsets: list[int], head_dim: int):
    """[query . first row, .. . fourth row] as four floats."""
    total = None
    for lane, width in _vectors(head_dim):
        ours = _load(builder, q, q_offset + lane * LANE_BYTES, _I32, width)
        zero = ir.Constant(ir.VectorType(_FLOAT, width), None)
        rows = [_load(builder, keys, at + lane * LANE_BYTES, _I32, width) for at in row_offsets]
        part = _sums_of_four(builder, [_add_pairs(builder, zero, ours, row) for row in rows])
        total = part if total is None else builder.fadd(total, part)
    return total


def _vectors(head_dim: int) -> list[tuple[int, int]]:
    """(first lane, lanes) of the vectors that cover a head."""
    vectors, first, width = [], 0, _MAX_LANES
    while first < head_dim // 2:
        while first + width > head_dim // 2:
            width //= 2
        vectors.append((first, width))
        first += width
    return vectors


def _add_pairs(builder, total, left, right):
    """total[i] + left[i].low * right[i].low + left[i].high * right[i].high."""
    width = total.type.count
    if has_bfloat16() and width >= 4:
        name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width}"
        return _call(builder, name, [total, left, right])
    for half in (_low, _high):
        sides = [half(builder, lanes, width) for lanes in (left, right)]
        total = _call(builder, f"llvm.fma.v{width}f32", [*sides, total])
    return total


def _low(builder, lanes, width: int):
    shifted = builder.shl(lanes, _repeated(16, width))
    return builder.bitcast(shifted, ir.VectorType(_FLOAT, width))


def _high(builder, lanes, width: int):
    masked = builder.and_(lanes, _repeated(0xFFFF0000, width))
    return builder.bitcast(masked, ir.VectorType(_FLOAT, width))


def _paired_rows(builder, address, offset: int, row_bytes: int, width: int):
    """Even dimensions of a row and the next in one lane each, and the odd ones."""
    one = _load(builder, address, offset, _I32, width)
    other = _load(builder, address, offset + row_bytes, _I32, width)
    low, high, half = _repeated(0xFFFF, width), _repeated(0xFFFF0000, width), _repeated(16, width)
    even = builder.or_(builder.and_(one, low), builder.shl(other, half))
    odd = builder.or_(builder.lshr(one, half), builder.and_(other, high))
    return even, odd


def _sums_of_four(builder, vectors):
    """[sum of the first vector's lanes, .. of the fourth's]."""
    width = vectors[0].type.count
    while width < 4:  # lanes of zeros behind them
        vectors = [_shuffled(builder, v, _zeros(v), range(2 * width)) for v in vectors]
        width *= 2
    groups = range(0, width, 4)
    near = [at for g in groups for at in (g, g + width, g + 1, g + 1 + width)]
    far = [at for g in groups for at in (g + 2, g + 2 + width, g + 3, g + 3 + width)]
    left, right = (
        builder.fadd(_shuffled(builder, a, b, near), _shuffled(builder, a, b, far))
        for a, b in (vectors[:2], vectors[2:])
    )
    near = [at for g in groups for at in (g, g + 1, g + width, g + 1 + width)]
    far = [at for g in groups for at in (g + 2, g + 3, g + 2 + width, g + 3 + width)]
    sums = builder.fadd(_shuffled(builder, left, right, near), _shuffled(builder, left, right, far))
    while width > 4:
        width //= 2
        lower = _shuffled(builder, sums, sums, range(width))
        sums = builder.fadd(lower, _shuffled(builder, sums, sums, range(width, 2 * width)))
    return sums


def _call(builder, name: str, arguments):
    """Of a function that returns what the first argument's type is."""
    kinds = [argument.type for argument in arguments]
    function = builder.module.declare_intrinsic(name, fnty=ir.FunctionType(kinds[0], kinds))
    return builder.call(function, arguments)


def _shuffled(builder, one, other, lanes):
    mask = ir.Constant(ir.VectorType(_I32, len(lanes)), list(lanes))
    return builder.shuffle_vector(one, other, mask)


def _splat(builder, scalar, width: int):
    vector = ir.Constant(ir.VectorType(scalar.type, width), ir.Undefined)
    one = builder.insert_element(vector, scalar, _I32(0))
    return _shuffled(builder, one, vector, [0] * width)


def _zeros(vector):
    return ir.Constant(vector.type, None)


def _repeated(value: int, width: int):
    return ir.Constant(ir.VectorType(_I32, width), [value] * width)


def _pointer(builder, address, offset: int, kind):
    return builder.inttoptr(builder.add(address, _I64(offset)), kind.as_pointer())


def _load(builder, address, offset: int, scalar, width: int):
    pointer = _pointer(builder, address, offset, ir.VectorType(scalar, width))
    return builder.load(pointer, align=LANE_BYTES)


def _store(builder, value, address, offset: int) -> None:
    builder.store(value, _pointer(builder, address, offset, value.type), align=LANE_BYTES)
