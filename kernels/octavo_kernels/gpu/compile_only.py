"""Compiles the kernels of some code side by side, without running them."""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import triton
from triton import knobs
from triton.runtime import driver
from triton.runtime.jit import JITFunction


@dataclass
class Compilations:
    """Complete once `compile_only` has been left."""

    num_found: int = 0
    """Kernels that were in the cache."""
    num_compiled: int = 0
    jobs: list[Future[Any]] = field(default_factory=list)
    """Of either kind."""

    def wait_for_new(self) -> int:
        """How many of what was launched so far are compiled: at least one, unless all were found,
        which is known when all have been looked for."""
        pending = set(self.jobs)
        while pending and not self.num_compiled:
            _, pending = wait(pending, return_when=FIRST_COMPLETED)
        return self.num_compiled


class _Compilers(ThreadPoolExecutor):
    """Make a kernel's launcher too: some versions of Triton have the C compiler build one for each
    signature, at the first launch and one after the other, which took 5 s of a cold start."""

    def __init__(self, num_threads: int, jobs: list[Future[Any]]) -> None:
        """jobs: where to note what is submitted."""
        super().__init__(num_threads)
        self._jobs = jobs

    # Whatever Triton submits is a compilation.
    def submit(self, job: Callable[[], Any]) -> Future[Any]:  # type: ignore[override]  # narrower
        def compile_with_launcher() -> Any:
            kernel = job()
            # It stays in Triton's cache of files, where the first launch finds it.
            driver.active.launcher_cls(kernel.src, kernel.metadata)
            return kernel

        submitted = super().submit(compile_with_launcher)
        self._jobs.append(submitted)
        return submitted


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
        with _Compilers(num_threads, counts.jobs) as threads, triton.AsyncCompileMode(threads):
            yield counts
    finally:
        JITFunction.run = launch
        knobs.compilation.listener = listener
