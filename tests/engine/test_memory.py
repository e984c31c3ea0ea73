"""The process does not grow with the requests it has answered."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]


def test_two_thousand_requests_leave_the_memory_of_two_hundred():
    child = subprocess.run(
        [sys.executable, "-m", "tests.engine.memory_child"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    early_kib, late_kib = map(int, child.stdout.split())
    assert late_kib < early_kib * 1.02, f"{early_kib} KiB grew to {late_kib} KiB"
