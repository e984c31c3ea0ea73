"""What kernels in numba need of memory: typed views of addresses, bfloat16 as 16-bit words.

A kernel gets one array of 64-bit words: sizes, addresses, and the bits of a double for a number.
"""

import struct

import numpy as np
from llvmlite import binding, ir
from numba import config, njit, types
from numba.extending import intrinsic

FAST = {"reassoc", "contract", "arcp", "nsz"}
"""Sums in any order, which vectorises them; a NaN stays a NaN."""
_LINE_BYTES = 64


def has_bfloat16() -> bool:
    """Whether what is compiled may use the CPU's instructions for bfloat16 (AVX512-BF16)."""
    is_this_cpu = config.CPU_NAME is None and config.CPU_FEATURES is None
    return is_this_cpu and bool(binding.get_host_cpu_features().get("avx512bf16", False))


def compiled_once(function):
    """Compiles a kernel, by way of numba's cache on disk where a place for that can be written."""
    options = {"fastmath": FAST, "nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no place: a read-only container without a home
        return njit(**options)(function)


def compiled_for(*numbers: int):
    """As `compiled_once`, for a kernel that has these numbers compiled in. It gets a file of its
    own in the cache: numba counts the variants of one function by what it has last read, so two
    processes that compile different ones at a time could each find the other's under its key."""

    def decorate(function):
        function.__qualname__ += "_" + "x".join(map(str, numbers))
        return compiled_once(function)

    return decorate


def helper(function):
    """Compiles what kernels call, into each of them."""
    return njit(fastmath=FAST, nogil=True, error_model="numpy")(function)


def number(value: float) -> int:
    """The word that `as_number` reads back."""
    word: int = struct.unpack("<q", struct.pack("<d", value))[0]
    return word


def _pointer(kind: types.Type, llvm: ir.Type):
    @intrinsic
    def pointer(typing, address):
        def generate(context, builder, signature, arguments):
            return builder.inttoptr(arguments[0], llvm.as_pointer())

        return types.CPointer(kind)(types.int64), generate

    return pointer


words_at = _pointer(types.uint16, ir.IntType(16))
shorts_at = _pointer(types.int16, ir.IntType(16))
int32s_at = _pointer(types.int32, ir.IntType(32))
int64s_at = _pointer(types.int64, ir.IntType(64))
floats_at = _pointer(types.float32, ir.FloatType())


def stack_memory(num_bytes: int):
    """A function to be called once in a kernel: the address of so many bytes that are the kernel's
    until it returns.

    Not those of an array: numba frees an array behind its last use and sees none in an address.
    """

    @intrinsic
    def take(typing):
        def generate(context, builder, signature, arguments):
            with builder.goto_entry_block():
                memory = builder.alloca(ir.ArrayType(ir.IntType(8), num_bytes))
                memory.align = _LINE_BYTES
                return builder.ptrtoint(memory, ir.IntType(64))

        return types.int64(), generate

    return take


@intrinsic
def as_number(typing, word):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def widen(typing, word):
    """bfloat16 -> float32, exact."""

    def generate(context, builder, signature, arguments):
        wide = builder.zext(arguments[0], ir.IntType(32))
        shifted = builder.shl(wide, ir.Constant(ir.IntType(32), 16))
        return builder.bitcast(shifted, ir.FloatType())

    return types.float32(types.uint16), generate


@intrinsic
def _bits(typing, value):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def _from_bits(typing, bits):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@njit(inline="always")
def narrow(value):
    """float32 -> bfloat16, to the nearest and to even on a tie."""
    bits = _bits(value)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    return np.uint16((bits + np.uint32(0x7FFF) + odd) >> np.uint32(16))


@njit(inline="always")
def finite(word):
    """The bfloat16; 0 where it is no finite number."""
    exponent = word & np.uint16(0x7F80)
    return np.uint16(0) if exponent == np.uint16(0x7F80) else word


LOG2_E = np.float32(1.4426950408889634)
POWERS_OF_2 = tuple(
    np.float32(coefficient)
    for coefficient in (
        1.5403530e-4, 1.3333558e-3, 9.6181291e-3, 5.5504109e-2, 2.4022651e-1, 6.9314718e-1, 1.0,
    )
)  # fmt: skip
"""Of 2 ** part on [-0.5, 0.5], the highest power first."""


@njit(fastmath=FAST, inline="always")
def exp_not_above_0(value):
    """exp(value) for value <= 0 within 2e-7 of it; vectorises, which libm's does not."""
    exponent = max(value * LOG2_E, np.float32(-126.0))
    whole = np.floor(exponent + np.float32(0.5))
    part = exponent - whole
    power = POWERS_OF_2[0]
    power = power * part + POWERS_OF_2[1]
    power = power * part + POWERS_OF_2[2]
    power = power * part + POWERS_OF_2[3]
    power = power * part + POWERS_OF_2[4]
    power = power * part + POWERS_OF_2[5]
    power = power * part + POWERS_OF_2[6]
    biased = np.uint32(np.int32(whole) + np.int32(127)) << np.uint32(23)
    return power * _from_bits(biased)
