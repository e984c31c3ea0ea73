"""Compiles the kernels of some code side by side, without running them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import triton
from triton import knobs
from triton.runtime.jit import JITFunction


@dataclass
class Compilations:
    """Complete once `compile_only` has been left."""

    num_found: int = 0
    """Kernels that were in the cache."""
    num_compiled: int = 0


@contextmanager
def compile_only(num_threads: int) -> Iterator[Compilations]:
    """Inside, a launch hands its kernel to a thread that compiles it, and runs nothing: what the
    kernel would have written keeps its old contents. On leaving, all of them are compiled.

    For one thread at start-up: launches of the whole process are affected.
    """
    launch, listener = JITFunction.run, knobs.compilation.listener
    counts = Compilations()

    def compile_launch(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    def count(*, cache_hit: bool, **_: Any) -> None:
        if cache_hit:
            counts.num_found += 1
        else:
            counts.num_compiled += 1

    JITFunction.run = compile_launch
    knobs.compilation.listener = count
    try:
        with ThreadPoolExecutor(num_threads) as threads, triton.AsyncCompileMode(threads):
            yield counts
    finally:
        JITFunction.run = launch
        knobs.compilation.listener = listener
