"""The outermost process of one node: prepares mounts and network, then keeps its daemons running.

Run as `python -m tests.cluster.supervisor NODE_FOLDER`; reads `spec.json` there. With root it is
the first process of a pid namespace, so killing it takes everything of the node with it: daemons,
containers, mounts and interfaces. Without root its children die with it by their parent-death
signal. Knows nothing of Kubernetes: what to run is data.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

_RESTART_AFTER_S = 1.0
_FIRST_START_WITHIN_S = 60.0


@dataclass(frozen=True)
class Daemon:
    """A program kept running; `after` is the host:port that must answer before its first start."""

    name: str
    argv: tuple[str, ...]
    after: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Spec:
    """A node's orders: `setup` runs to its end in order, then the daemons start in order."""

    setup: tuple[tuple[str, ...], ...]
    daemons: tuple[Daemon, ...]
    env: Mapping[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Spec:
        data = json.loads(text)
        daemons = tuple(Daemon(**{**d, "argv": tuple(d["argv"])}) for d in data["daemons"])
        return Spec(tuple(tuple(argv) for argv in data["setup"]), daemons, data["env"])


class Supervisor:
    """Runs a `Spec`; the pids it knows are those of its own pid namespace."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._folder = folder
        self._spec = spec
        self._running: dict[int, Daemon] = {}

    def run(self) -> None:
        for argv in self._spec.setup:
            _say(f"setup: {' '.join(argv)}")
            subprocess.run(argv, env=dict(self._spec.env), check=True)
        (self._folder / "prepared").touch()
        for daemon in self._spec.daemons:
            if daemon.after is not None:
                _wait_for(daemon.after)
            self._start(daemon)
        while True:
            self._replace_next_dead()

    def _start(self, daemon: Daemon) -> None:
        with (self._folder / "log" / f"{daemon.name}.log").open("ab") as log:
            child = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *daemon.argv],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self._spec.env, **daemon.env},
                start_new_session=True,
            )
        self._running[child.pid] = daemon
        child.returncode = 0  # it is waited for below, not by this object
        _say(f"{daemon.name} runs as {child.pid}")
        self._write_pids()

    def _replace_next_dead(self) -> None:
        """Waits for any child, orphans included, and restarts it if it is a daemon."""
        pid, status = os.wait()
        daemon = self._running.pop(pid, None)
        if daemon is None:
            return
        _say(f"{daemon.name} ended with {os.waitstatus_to_exitcode(status)}: again in a second")
        time.sleep(_RESTART_AFTER_S)
        self._start(daemon)

    def _write_pids(self) -> None:
        pids = {daemon.name: pid for pid, daemon in self._running.items()}
        temporary = self._folder / "pids.json.new"
        temporary.write_text(json.dumps(pids))
        temporary.replace(self._folder / "pids.json")


def _wait_for(address: str) -> None:
    """Returns once something listens at host:port, or after a minute: daemons retry anyway."""
    host, port = address.rsplit(":", 1)
    deadline = time.monotonic() + _FIRST_START_WITHIN_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    _say(f"nothing listens at {address} yet: going on")


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main() -> None:
    folder = Path(sys.argv[1])
    (folder / "log").mkdir(exist_ok=True)
    Supervisor(folder, Spec.from_json((folder / "spec.json").read_text())).run()


if __name__ == "__main__":
    main()
