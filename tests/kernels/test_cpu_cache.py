"""Kernels of a CPU in numba's cache on disk."""

import pytest

from octavo_kernels.cpu.decode_attention import make_decode_attention
from octavo_kernels.cpu.tile_attention import make_tile_attention


@pytest.mark.parametrize("make", [make_decode_attention, make_tile_attention])
def test_variants_of_a_kernel_have_files_of_their_own(make):
    """numba names the files by the function; processes that write variants at once mix them up."""
    names = {make(num_queries, 64).py_func.__qualname__ for num_queries in (1, 2, 4)}
    assert len(names) == 3
