"""The matrix unit of a CPU (AMX) for numba: its eight tiles, and leave of the system to use them.

A tile is up to 16 rows of 64 bytes. A bfloat16 product takes 32 numbers of each of 16 rows of x,
and of 16 rows of the weight laid out pair by pair. Tiles keep their content between the functions
here, within one thread, from `configure` to `release`.
"""

import ctypes
import functools

import numpy as np
from llvmlite import binding, ir
from numba import config, types
from numba.extending import intrinsic

TILE_ROWS = 16
TILE_BYTES = 64
CONFIGURATION_BYTES = 64
_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA = 158, 0x1023, 18
_I8, _I32, _VOID = ir.IntType(8), ir.IntType(32), ir.VoidType()


class Pinned:
    """An array and where it lies: asking numpy for that takes as long as starting a kernel."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.address: int = array.ctypes.data


@functools.cache
def has_tiles() -> bool:
    """Whether this process may use tiles for bfloat16; asks the system for it."""
    if config.CPU_NAME is not None or config.CPU_FEATURES is not None:
        return False  # the user has numba compile for another CPU
    features = binding.get_host_cpu_features()
    if not (features.get("amx-tile", False) and features.get("amx-bf16", False)):
        return False
    call = ctypes.CDLL(None).syscall
    return bool(call(_ARCH_PRCTL, _ARCH_REQ_XCOMP_PERM, _XFEATURE_XTILEDATA) == 0)


def configuration(rows_above: int, rows_below: int) -> np.ndarray:
    """For a product of up to two tiles of x with two of the weight. Tiles 0 and 1 are the results
    of the upper rows, 2 and 3 of the lower ones; 4 and 5 are x, 6 and 7 the weight."""
    words = np.zeros(CONFIGURATION_BYTES, np.uint8)
    words[0] = 1
    bytes_in_row, rows = words[16:32].view(np.uint16), words[48:56]
    rows[:] = [rows_above] * 2 + [rows_below] * 2 + [rows_above, rows_below] + [TILE_ROWS] * 2
    bytes_in_row[:] = np.where(rows > 0, TILE_BYTES, 0)
    return words


def _call(builder, name: str, arguments):
    kind = ir.FunctionType(_VOID, [argument.type for argument in arguments])
    return builder.call(builder.module.declare_intrinsic(name, fnty=kind), arguments)


def _pointer(builder, address):
    return builder.inttoptr(address, _I8.as_pointer())


@intrinsic
def configure(typing, address):
    def generate(context, builder, signature, arguments):
        _call(builder, "llvm.x86.ldtilecfg", [_pointer(builder, arguments[0])])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def release(typing):
    def generate(context, builder, signature, arguments):
        _call(builder, "llvm.x86.tilerelease", [])
        return context.get_dummy_value()

    return types.void(), generate


def _of_tiles(name: str, num_tiles: int, num_words: int):
    """An instruction on tiles, given by number, and on an address and the bytes between rows."""

    def typed(tiles, words):
        def generate(context, builder, signature, arguments):
            out = [_I8(tile.literal_value) for tile in signature.args[:num_tiles]]
            if num_words:
                out += [_pointer(builder, arguments[num_tiles]), arguments[num_tiles + 1]]
            _call(builder, name, out)
            return context.get_dummy_value()

        return types.void(*tiles, *[types.int64] * len(words)), generate

    if num_words:
        return intrinsic(prefer_literal=True)(
            lambda typing, tile, address, stride: typed([tile], [address, stride])
        )
    if num_tiles == 1:
        return intrinsic(prefer_literal=True)(lambda typing, tile: typed([tile], []))
    return intrinsic(prefer_literal=True)(
        lambda typing, total, rows, weight: typed([total, rows, weight], [])
    )


clear = _of_tiles("llvm.x86.tilezero", 1, 0)
load = _of_tiles("llvm.x86.tileloadd64", 1, 2)
store = _of_tiles("llvm.x86.tilestored64", 1, 2)
add_product = _of_tiles("llvm.x86.tdpbf16ps", 3, 0)


@intrinsic
def prefetch(typing, address):
    """The line of memory at the address, into the second cache."""

    def generate(context, builder, signature, arguments):
        where = _pointer(builder, arguments[0])
        _call(builder, "llvm.prefetch.p0", [where, _I32(0), _I32(2), _I32(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate
