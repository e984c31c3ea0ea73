"""Which process is ours: a pid counts only together with its start time and the machine's boot.

A pid alone may belong to someone else by the time it is read back, so nothing here ever kills by a
bare pid or by name. Knows nothing of clusters.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.errors import ClusterError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
# Field 22 of /proc/PID/stat; counted from behind the command's name, which may hold spaces.
_START_TIME_AFTER_NAME = 19
_STATE_AFTER_NAME = 0


def _fields_after_name(stat: str) -> list[str]:
    return stat.rpartition(")")[2].split()


def spawn_recorded(
    argv: Sequence[str], record: Path, log: Path, *, cwd: Path, env: Mapping[str, str]
) -> int:
    """Starts `argv` in a session of its own and returns its pid.

    The shell writes its own identity into `record` before it becomes `argv`: whoever is killed at
    whatever moment, a process without a record never comes to hold anything.
    """
    temporary = shlex.quote(f"{record}.new")
    target = shlex.quote(str(record))
    script = f'cat {_BOOT_ID} /proc/$$/stat > {temporary} && mv {temporary} {target} && exec "$@"'
    with log.open("ab") as out:
        child = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *argv],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    # It outlives us on purpose: without this the interpreter warns about a child still running.
    child.returncode = 0
    return child.pid


def recorded_pid(record: Path) -> int | None:
    """The pid in `record` when that very process still runs, else None."""
    try:
        boot_id, stat = record.read_text().split("\n", 1)
    except FileNotFoundError:
        return None
    except ValueError:
        return None  # the machine went down while it was written
    if boot_id != _BOOT_ID.read_text().strip():
        return None
    pid = int(stat.split(maxsplit=1)[0])
    try:
        now = _fields_after_name(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    if now[_STATE_AFTER_NAME] in "ZX":
        return None
    then = _fields_after_name(stat)
    return pid if now[_START_TIME_AFTER_NAME] == then[_START_TIME_AFTER_NAME] else None


def kill_recorded(record: Path, *, timeout_s: float = 20) -> bool:
    """SIGKILLs the recorded process and waits until it is gone; False when it was gone already."""
    pid = recorded_pid(record)
    if pid is None:
        return False
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    while recorded_pid(record) is not None:
        _reap(pid)
        if time.monotonic() > deadline:
            raise ClusterError(f"process {pid} is still there {timeout_s:.0f} s after SIGKILL")
        time.sleep(0.02)
    return True


def _reap(pid: int) -> None:
    """Takes the exit status of `pid` when it is this process's own child."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return
