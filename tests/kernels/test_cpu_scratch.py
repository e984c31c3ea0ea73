"""What kernels of a CPU write down between is theirs alone until they are through."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("numba")  # an engine without it runs the references


def test_neighbours_that_take_memory_change_no_result() -> None:
    """With one arena for all threads, glibc gives the one what another has just given back."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.kernels.scratch_child"], capture_output=True, text=True,
        timeout=120, check=False, cwd=Path(__file__).parents[2],
        env=os.environ | {"MALLOC_ARENA_MAX": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    num_wrong = json.loads(done.stdout)
    assert num_wrong == dict.fromkeys(num_wrong, 0)
