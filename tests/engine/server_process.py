"""`octavo serve` as a real process of its own, on a loopback port."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

START_LIMIT_S = 300
STOP_LIMIT_S = 60


class ServerProcess:
    """`octavo serve` and what a test asks of it."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def core_pid(self) -> int:
        """Of the core's process."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        threads = children.parent.parent.iterdir()
        pids = [pid for thread in threads for pid in (thread / "children").read_text().split()]
        cores = [p for p in pids if b"core_process" in Path(f"/proc/{p}/cmdline").read_bytes()]
        assert len(cores) == 1, f"one core process expected, found {cores}"
        return int(cores[0])

    def exit_code(self) -> int:
        return self.process.wait(STOP_LIMIT_S)

    def wait_ready(self) -> None:
        self.wait_status("/readyz", 200)

    def wait_status(self, path: str, status: int) -> None:
        deadline_s = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline_s:
            assert self.process.poll() is None, self.log
            try:
                if httpx.get(f"{self.url}{path}").status_code == status:
                    return
            except httpx.TransportError:  # not there yet, or busy with its start
                pass
            time.sleep(0.2)
        raise AssertionError(f"{path} not {status} in {START_LIMIT_S} s: {self.log}")


@contextmanager
def serving_process(model: Path, port: int, *options: str) -> Iterator[ServerProcess]:
    """A running server; whatever the test does, its process is gone afterwards."""
    command = [sys.executable, "-m", "octavo_engine", "serve", str(model), "--port", str(port)]
    command += ["--host", "127.0.0.1", "--cpu-kv-cache-gib", "0.25", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    with tempfile.NamedTemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        try:
            yield ServerProcess(process, port, Path(log.name))
        finally:
            process.kill()
            process.wait()
