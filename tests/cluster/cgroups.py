"""The cgroups of a node: made before it starts, removed with everything below when it is gone."""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.cluster.errors import ClusterError

_ROOT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The mount points of all hierarchies: one for version 2, one per controller for version 1."""
    found: list[Path] = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, kind = line.partition(" - ")
        mount_point = Path(fields.split()[4])
        if kind.split()[0] in ("cgroup", "cgroup2") and mount_point.is_relative_to(_ROOT):
            found.append(mount_point)
    return found


def make(name: str) -> None:
    """Makes the cgroup `name` in every hierarchy, with all controllers and processors."""
    for root in hierarchies():
        group = root / name
        group.mkdir(exist_ok=True)
        if (root / "cgroup.subtree_control").exists():
            _delegate(root)
            _delegate(group)
        if (root / "cpuset.cpus").exists():
            # Version 1 starts a cpuset empty, and nothing may run in an empty one.
            for file in ("cpuset.cpus", "cpuset.mems"):
                (group / file).write_text((root / file).read_text())


def _delegate(group: Path) -> None:
    available = (group / "cgroup.controllers").read_text().split()
    enabled = (group / "cgroup.subtree_control").read_text().split()
    for controller in set(available) - set(enabled):
        try:
            (group / "cgroup.subtree_control").write_text(f"+{controller}")
        except OSError as error:
            raise ClusterError(f"{group}: cannot delegate {controller!r}: {error}") from error


def remove(name: str, *, timeout_s: float = 20) -> None:
    """Removes `name` and all below it; its last processes may need a moment to be gone."""
    deadline = time.monotonic() + timeout_s
    while left := [group for root in hierarchies() if (group := root / name).exists()]:
        for group in left:
            _remove_tree(group)
        if time.monotonic() > deadline:
            raise ClusterError(f"cgroup {left[0]} is still in use after {timeout_s:.0f} s")
        time.sleep(0.05)


def _remove_tree(top: Path) -> None:
    for folder, _, _ in os.walk(top, topdown=False):
        try:
            Path(folder).rmdir()
        except FileNotFoundError:
            continue
        except OSError:
            return  # a process in it is still dying: the caller comes back
