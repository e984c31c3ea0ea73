"""The GNU OpenMP that PyTorch brings, called past PyTorch."""

import ctypes
import functools
from pathlib import Path

import torch

_SOFT = 1
"""omp_pause_soft: threads are given back, settings stay."""


def library_path() -> Path | None:
    """None where this build of PyTorch brings another one."""
    found = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    return found[0] if found else None


@functools.cache
def _library() -> ctypes.CDLL | None:
    path = library_path()
    return None if path is None else ctypes.CDLL(str(path))


def release_threads() -> None:
    """Ends the threads that helped the calling one; its next parallel work starts new ones.

    Each thread that has ever computed keeps helpers of its own. With more of them than cores, idle
    ones included, OpenMP no longer lets a helper wait awake for the next product: it slept and was
    woken 200 times in each step of a small model.
    """
    library = _library()
    if library is not None:
        library.omp_pause_resource_all(_SOFT)
