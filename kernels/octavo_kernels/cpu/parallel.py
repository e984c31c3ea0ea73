"""Runs a compiled kernel on the very threads that PyTorch's own products run on.

A second pool would fight with the first for the cores. Kernels are called as `kernel(words, part,
num_parts)` and do their part of the work; numba's own parallel loops bring a pool of their own.
"""

import ctypes
from collections.abc import Callable

from llvmlite import binding
from numba import carray, cfunc, types

from octavo_kernels.cpu.openmp import library_path

MAX_NUM_WORDS = 20


class MissingOpenMP(Exception):
    """This build of PyTorch brings no GNU OpenMP."""


class ThreadPool:
    """Raises MissingOpenMP."""

    def __init__(self) -> None:
        path = library_path()
        if path is None:
            raise MissingOpenMP("PyTorch's libgomp was not found")
        binding.load_library_permanently(str(path))
        # Its entry for compiled code: a function, its argument, how many threads, flags.
        self._enter = ctypes.CDLL(str(path)).GOMP_parallel
        self._enter.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._enter.restype = None

    def run(self, kernel: "Kernel", words: tuple[int, ...], num_threads: int) -> None:
        """Returns when all threads have done their part."""
        arguments = (ctypes.c_int64 * MAX_NUM_WORDS)(*words)
        self._enter(kernel.entry.address, arguments, num_threads, 0)


class Kernel:
    """A numba function kernel(words, part, num_parts), callable by OpenMP's threads."""

    def __init__(self, kernel: Callable[..., None]) -> None:
        thread_idx = types.ExternalFunction("omp_get_thread_num", types.int32())
        num_threads = types.ExternalFunction("omp_get_num_threads", types.int32())

        @cfunc(types.void(types.CPointer(types.int64)))
        def entry(words):
            kernel(carray(words, (MAX_NUM_WORDS,)), thread_idx(), num_threads())

        self.entry = entry
