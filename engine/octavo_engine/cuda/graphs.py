"""A function of a number of rows, captured as CUDA graphs for a ladder of sizes.

Captured largest first into one memory pool, so that the smaller graphs live in the largest one's
memory. Between sizes a step is padded up. Without a capture the function simply runs.
"""

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import torch


def graph_sizes(max_num_rows: int) -> list[int]:
    """Steps of 8 to 256, of 32 to 512, of 64 beyond: padding costs at most an eighth above 64."""
    ladder = [1, 2, 4, *range(8, 256, 8), *range(256, 512, 32)]
    ladder += range(512, max_num_rows, 64)
    return [size for size in ladder if size < max_num_rows] + [max_num_rows]


def ends_of_powers(sizes: list[int]) -> list[int]:
    """The smallest and the largest size up to each power of two: kernels are compiled anew for
    powers of two alone."""
    return [
        size
        for idx, size in enumerate(sizes)
        if idx in (0, len(sizes) - 1)
        or _power(sizes[idx - 1]) != _power(size)
        or _power(size) != _power(sizes[idx + 1])
    ]


def _power(size: int) -> int:
    return (size - 1).bit_length()


class CapturedFunction:
    def __init__(
        self,
        function: Callable[[int], None],
        sizes: list[int],
        rehearsal: Callable[[int], None] | None = None,
    ) -> None:
        """rehearsal: launches every kernel of the function and takes less time; None: itself."""
        self._function = function
        self._rehearsal = rehearsal or function
        self._sizes = sizes
        self._graphs: list[torch.cuda.CUDAGraph] = []

    def warm(self, num_sizes: int | None = None) -> None:
        """Rehearses the largest num_sizes sizes (None: all) once: kernels are compiled and
        libraries loaded outside a capture."""
        for size in self._largest_first(num_sizes):
            self._rehearsal(size)

    def touch(self, *, only_smallest: bool = False) -> None:
        """Launches every kernel that the sizes compile, for `compile_only`."""
        for size in self._sizes[:1] if only_smallest else ends_of_powers(self._sizes):
            self._rehearsal(size)

    def capture(self, pool: Any, num_sizes: int | None = None) -> None:
        """Captures the same sizes on the current stream, which is not the default one."""
        graphs = []
        for size in self._largest_first(num_sizes):
            graph = torch.cuda.CUDAGraph()
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._function(size)
            finally:
                graph.capture_end()
            graphs.append(graph)
        self._graphs = graphs[::-1]

    def drop(self) -> None:
        """Back to running the function, with the graphs' memory given back."""
        self._graphs = []

    def _largest_first(self, num_sizes: int | None) -> list[int]:
        return self._sizes[::-1][:num_sizes]

    @property
    def is_captured(self) -> bool:
        return bool(self._graphs)

    def size_for(self, num_rows: int) -> int:
        """The smallest size that holds num_rows."""
        return self._sizes[bisect_left(self._sizes, num_rows)]

    def run(self, num_rows: int) -> int | None:
        """Returns how many rows were padding; None when it ran without a graph."""
        if not self._graphs:
            self._function(num_rows)
            return None
        self._graphs[bisect_left(self._sizes, num_rows)].replay()
        return self.size_for(num_rows) - num_rows
