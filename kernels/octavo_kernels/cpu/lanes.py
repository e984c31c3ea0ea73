"""What follows a product by the matrix unit, on 32 float32 at an address, 16 at once.

LLVM makes vectors of half that length from loops, and none of rounding to bfloat16. A CPU with
tiles has the instructions for all of this.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from octavo_kernels.cpu.words import LOG2_E, POWERS_OF_2

_I32 = ir.IntType(32)
FLOATS, WORDS = ir.VectorType(ir.FloatType(), 16), ir.VectorType(_I32, 16)


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite carries no types
    """LLVM's type, which llvmlite has no name for."""

    def _to_string(self) -> str:
        return "bfloat"


HALVES = ir.VectorType(_BFloat(), 16)


@intrinsic
def narrow_32(typing, source, target):
    """32 float32 at an address -> as many bfloat16 at another, to the nearest and to even on a tie.
    A CPU with tiles has an instruction for 16."""

    def generate(context, builder, signature, arguments):
        for half in range(2):
            value = builder.load(vector_at(builder, arguments[0], 64 * half, FLOATS), align=4)
            target = vector_at(builder, arguments[1], 32 * half, HALVES)
            builder.store(builder.fptrunc(value, HALVES), target, align=2)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def multiply_32(typing, values, factors):
    """32 float32 at an address, each times the one of its place at another."""

    def generate(context, builder, signature, arguments):
        for half in range(2):
            places = [vector_at(builder, at, 64 * half, FLOATS) for at in arguments]
            value, factor = (builder.load(place, align=4) for place in places)
            builder.store(builder.fmul(value, factor), places[0], align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def gate_32(typing, sums, slope, cubic):
    """32 float32 at an address, each x becoming x * sigmoid(slope * (x + cubic * x ** 3))."""

    def generate(context, builder, signature, arguments):
        slope, cubic = (in_all_lanes(builder, value) for value in arguments[1:])
        for half in range(2):
            place = vector_at(builder, arguments[0], 64 * half, FLOATS)
            x = builder.load(place, align=4)
            bent = builder.fadd(x, builder.fmul(cubic, builder.fmul(x, builder.fmul(x, x))))
            share = _sigmoid(builder, builder.fmul(slope, bent))
            builder.store(builder.fmul(x, share), place, align=4)
        return context.get_dummy_value()

    return types.void(types.int64, types.float32, types.float32), generate


def _sigmoid(builder, value):
    """1 / (1 + exp(-value)) in 16 lanes within 3e-7 of it; a NaN stays one."""
    exponent = builder.fmul(value, constant(-LOG2_E))
    # Beyond these bounds the result is 0 or 1 in bfloat16.
    for name, bound in (("llvm.maxnum", -126.0), ("llvm.minnum", 126.0)):
        exponent = call(builder, name, [exponent, constant(bound)])
    one = constant(1.0)
    share = builder.fdiv(one, builder.fadd(one, power_of_2(builder, exponent)))
    return builder.select(builder.fcmp_unordered("uno", value, value), value, share)


def power_of_2(builder, exponent):
    """2 ** exponent in 16 lanes within 2e-7 of it, for exponents from -127, whose power is 0 here,
    to 127."""
    whole = call(builder, "llvm.rint", [exponent])
    part = builder.fsub(exponent, whole)
    power = constant(POWERS_OF_2[0])
    for coefficient in POWERS_OF_2[1:]:
        power = call(builder, "llvm.fma", [power, part, constant(coefficient)])
    biased = builder.add(builder.fptosi(whole, WORDS), ir.Constant(WORDS, [127] * 16))
    return builder.fmul(power, builder.bitcast(shifted_left(builder, biased, 23), FLOATS))


def shifted_left(builder, words, num_bits: int):
    return builder.shl(words, ir.Constant(words.type, [num_bits] * 16))


def constant(number: "float | np.float32"):
    return ir.Constant(FLOATS, [float(np.float32(number))] * 16)


def in_all_lanes(builder, scalar):
    empty = ir.Constant(ir.VectorType(scalar.type, 16), ir.Undefined)
    one = builder.insert_element(empty, scalar, _I32(0))
    return builder.shuffle_vector(one, empty, ir.Constant(WORDS, [0] * 16))


def call(builder, name: str, arguments):
    kind = ir.FunctionType(FLOATS, [FLOATS] * len(arguments))
    return builder.call(builder.module.declare_intrinsic(f"{name}.v16f32", fnty=kind), arguments)


def vector_at(builder, address, offset: int, kind):
    return builder.inttoptr(builder.add(address, ir.IntType(64)(offset)), kind.as_pointer())
