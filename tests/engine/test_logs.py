"""What a process writes to its log."""

import subprocess
import sys

import pytest

FAILING = """
import sys, structlog
from octavo_engine.logs import configure_logs
configure_logs(sys.argv[1])
def answer(prompt):
    raise RuntimeError("a defect")
try:
    answer("a user's " + "own words")
except RuntimeError:
    structlog.get_logger().exception("it failed")
"""


@pytest.mark.parametrize("log_format", ["console", "json"])
def test_an_exception_is_logged_without_the_values_of_local_variables(log_format: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING, log_format], capture_output=True, text=True, check=True
    )
    assert "it failed" in done.stderr
    assert "RuntimeError: a defect" in done.stderr
    assert "in answer" in done.stderr
    assert "a user's own words" not in done.stderr
