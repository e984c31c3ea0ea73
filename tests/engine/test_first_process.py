"""SIGTERM before the server listens."""

import signal
import subprocess
import sys

import pytest

CODE = """
import os, signal
own_pid = os.getpid()
os.getpid = lambda: {pid}
from octavo_engine.cli.first_process import heed_sigterm
heed_sigterm()
os.kill(own_pid, signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("pid", "code"), [("1", 128 + signal.SIGTERM), ("own_pid", -signal.SIGTERM)]
)
def test_a_containers_first_process_ends_when_told(pid: str, code: int) -> None:
    """Any other process is ended by the signal itself, as whoever sent it expects."""
    ended = subprocess.run([sys.executable, "-c", CODE.format(pid=pid)], timeout=60)
    assert ended.returncode == code
