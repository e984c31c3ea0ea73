"""The process does not grow with the requests it has answered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.tiny_models import save_tiny

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.parametrize("has_model", [False, True])
def test_two_thousand_requests_leave_the_memory_of_two_hundred(has_model: bool, tmp_path: Path):
    if has_model:
        save_tiny("llama", tmp_path)
    child = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.engine.memory_child",
            *([str(tmp_path)] if has_model else []),
        ],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    early_kib, late_kib = map(int, child.stdout.split()[-2:])
    assert late_kib < early_kib * 1.02, f"{early_kib} KiB grew to {late_kib} KiB"
