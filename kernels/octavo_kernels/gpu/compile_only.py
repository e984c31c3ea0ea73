"""Compiles the kernels of some code side by side, without running them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import triton
from triton.runtime.jit import JITFunction


@contextmanager
def compile_only(num_threads: int) -> Iterator[None]:
    """Inside, a launch hands its kernel to a thread that compiles it, and runs nothing: what the
    kernel would have written keeps its old contents. On leaving, all of them are compiled.

    For one thread at start-up: launches of the whole process are affected.
    """
    launch = JITFunction.run

    def compile_launch(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return launch(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = compile_launch
    try:
        with ThreadPoolExecutor(num_threads) as threads, triton.AsyncCompileMode(threads):
            yield
    finally:
        JITFunction.run = launch
