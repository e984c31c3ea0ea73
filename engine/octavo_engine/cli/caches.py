"""Where a start leaves what the next one need not do again: compiled kernels, configs once read.

One folder, so that an image or a volume can carry it. Said before triton or numba is imported.
"""

from collections.abc import MutableMapping
from pathlib import Path

from octavo_engine.loading.cache_variable import CACHE_VARIABLE

TRITON_VARIABLE = "TRITON_CACHE_DIR"
NUMBA_VARIABLE = "NUMBA_CACHE_DIR"


def name_the_caches(environment: MutableMapping[str, str]) -> None:
    """Writes the variables where the user has set none."""
    folder = environment.get(CACHE_VARIABLE) or environment.get("XDG_CACHE_HOME")
    if not folder and "HOME" in environment:
        folder = str(Path(environment["HOME"]) / ".cache")
    if not folder:
        return
    root = Path(environment.get(CACHE_VARIABLE) or Path(folder) / "octavo")
    environment[CACHE_VARIABLE] = str(root)
    environment.setdefault(TRITON_VARIABLE, str(root / "kernels"))
    environment.setdefault(NUMBA_VARIABLE, str(root / "cpu-kernels"))
