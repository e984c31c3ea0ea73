"""The softmax of attention by tiles, 16 keys at once: scores spread by query, weights, their sum.

Addresses are of float32, or of 32-bit lanes of two bfloat16. A NaN stays one.
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo_kernels.cpu.lanes import (
    FLOATS,
    HALVES,
    WORDS,
    call,
    constant,
    in_all_lanes,
    power_of_2,
    shifted_left,
    vector_at,
)
from octavo_kernels.cpu.words import LOG2_E

_I32 = ir.IntType(32)


@intrinsic(prefer_literal=True)
def spread_scores(typing, num_queries, source, target, stride, maxima, scale, first, last):
    """[16 keys, num_queries] times scale, at the source -> 16 keys side by side for each query,
    stride bytes apart; keys before first and from last on score -inf. Maxima: [num_queries, 16],
    of each lane so far."""

    def generate(context, builder, signature, arguments):
        count = signature.args[0].literal_value
        source, target, stride, maxima, scale, first, last = arguments[1:]
        whole = builder.load(vector_at(builder, source, 0, _floats(16 * count)), align=4)
        keys = ir.Constant(WORDS, list(range(16)))
        bounds = [in_all_lanes(builder, builder.trunc(x, _I32)) for x in (first, last)]
        hides = builder.or_(
            builder.icmp_signed("<", keys, bounds[0]), builder.icmp_signed(">=", keys, bounds[1])
        )
        scale = in_all_lanes(builder, scale)
        for query in range(count):
            lanes = ir.Constant(WORDS, [key * count + query for key in range(16)])
            score = builder.fmul(builder.shuffle_vector(whole, whole, lanes), scale)
            score = builder.select(hides, constant(float("-inf")), score)
            builder.store(score, vector_at(builder, target, 0, FLOATS), align=4)
            place = vector_at(builder, maxima, 64 * query, FLOATS)
            largest = call(builder, "llvm.maxnum", [builder.load(place, align=4), score])
            builder.store(largest, place, align=4)
            target = builder.add(target, stride)
        return context.get_dummy_value()

    addresses = [types.int64] * 4
    signature = types.void(num_queries, *addresses, types.float32, types.int64, types.int64)
    return signature, generate


@intrinsic
def weigh_16(typing, scores, weights, totals, largest):
    """exp(score - largest) of 16 keys, rounded to bfloat16: as the lower halves of 16 lanes, and
    behind them as the upper halves of 16 more; added to the 16 totals as rounded."""

    def generate(context, builder, signature, arguments):
        scores, weights, totals, largest = arguments
        score = builder.load(vector_at(builder, scores, 0, FLOATS), align=4)
        below = builder.fsub(score, in_all_lanes(builder, largest))
        exponent = builder.fmul(below, constant(LOG2_E))
        # The power of -127 is 0.
        power = power_of_2(builder, call(builder, "llvm.maxnum", [exponent, constant(-127.0)]))
        power = builder.select(builder.fcmp_unordered("uno", score, score), score, power)
        low = builder.zext(builder.bitcast(builder.fptrunc(power, HALVES), _words(16, 16)), WORDS)
        high = shifted_left(builder, low, 16)
        builder.store(low, vector_at(builder, weights, 0, WORDS), align=4)
        builder.store(high, vector_at(builder, weights, 64, WORDS), align=4)
        place = vector_at(builder, totals, 0, FLOATS)
        total = builder.fadd(builder.load(place, align=4), builder.bitcast(high, FLOATS))
        builder.store(total, place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32), generate


@intrinsic
def largest_of_16(typing, address):
    def generate(context, builder, signature, arguments):
        value = builder.load(vector_at(builder, arguments[0], 0, FLOATS), align=4)
        kind = ir.FunctionType(ir.FloatType(), [FLOATS])
        name = "llvm.vector.reduce.fmax.v16f32"
        return builder.call(builder.module.declare_intrinsic(name, fnty=kind), [value])

    return types.float32(types.int64), generate


@intrinsic
def sum_of_16(typing, address):
    def generate(context, builder, signature, arguments):
        value = builder.load(vector_at(builder, arguments[0], 0, FLOATS), align=4)
        for width in (8, 4, 2, 1):
            halves = [
                builder.shuffle_vector(value, value, ir.Constant(_words(32, width), lanes))
                for lanes in (list(range(width)), list(range(width, 2 * width)))
            ]
            value = builder.fadd(*halves)
        return builder.extract_element(value, _I32(0))

    return types.float32(types.int64), generate


def _floats(count: int):
    return ir.VectorType(ir.FloatType(), count)


def _words(bits: int, count: int):
    return ir.VectorType(ir.IntType(bits), count)
