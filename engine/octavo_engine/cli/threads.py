"""How many threads PyTorch may use on the host, and how they wait. Said before torch is imported.

OpenMP reads its environment once, when its library is loaded, and its defaults suit a machine of
one's own: as many threads as the node has cores, also in a pod that may use two of them, and
threads that spin at every barrier. Beside any other work such threads wait for each other most of
the time: one stream of a small model fell from 16 tokens a second to 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import MutableMapping
from pathlib import Path

_CGROUPS = Path("/sys/fs/cgroup")
_SPINS = "10000"
"""Tens of microseconds: as long as the gap between two products, and then sleep."""


def share_the_host(environment: MutableMapping[str, str], cgroups: Path = _CGROUPS) -> None:
    """Writes OpenMP's variables where the user has set none."""
    if "OMP_WAIT_POLICY" not in environment:
        environment.setdefault("GOMP_SPINCOUNT", _SPINS)
    quota = cpu_quota(cgroups)
    if quota is not None and quota < len(os.sched_getaffinity(0)):
        environment.setdefault("OMP_NUM_THREADS", str(max(1, math.floor(quota))))


def cpu_quota(cgroups: Path = _CGROUPS) -> float | None:
    """CPUs that the container may use, of cgroup v2 or v1; None without a limit."""
    unified = cgroups / "cpu.max"
    legacy = cgroups / "cpu"
    if unified.exists():
        quota, period = unified.read_text().split()
    elif (legacy / "cpu.cfs_quota_us").exists():
        quota = (legacy / "cpu.cfs_quota_us").read_text().strip()
        period = (legacy / "cpu.cfs_period_us").read_text().strip()
    else:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)
