"""The rank processes that rank 0 has started on its own host."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from octavo_engine.parallel.setup import RankSetup

CHILD = "--child"
"""Says that the standard input is a pipe from rank 0."""
STACK_SIGNAL = signal.SIGUSR1
"""Makes a rank write its stacks to the log; `rank_process` registers it."""
STACK_WAIT_S = 1.0


class RankProcess:
    """Ends when this process does: its standard input is a pipe that we hold open."""

    def __init__(self, setup: RankSetup, environment: Mapping[str, str]) -> None:
        self.rank = setup.rank
        self._process = subprocess.Popen(
            [sys.executable, "-m", "octavo_engine.parallel.rank_process", CHILD],
            stdin=subprocess.PIPE,
            env={**environment, **setup.environment()},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def how_it_ended(self) -> str | None:
        """A few words; None while it runs."""
        code = self._process.poll()
        if code is None:
            return None
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def tell_stack(self) -> None:
        """Also of a process that was stopped, which must go on for that."""
        if self._process.poll() is None:
            os.kill(self.pid, STACK_SIGNAL)
            os.kill(self.pid, signal.SIGCONT)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended by then."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
