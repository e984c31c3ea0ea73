"""What a local cluster needs here: whether this machine can run nodes, and getting what is missing.

Standard library only: the preflight asks before there is a virtual environment.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.cluster import packages, programs
from tests.cluster.errors import CommandFailed, Missing
from tests.cluster.programs import Say
from tests.cluster.run import run


def why_no_nodes() -> str | None:
    """Why this user cannot run nodes here, or None when it can."""
    if os.geteuid() != 0:
        return "nodes (containerd, kubelet) need root"
    try:
        run(["unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork", "true"])
    except CommandFailed as error:
        return f"this root may not make namespaces: {error}"
    if not os.access("/sys/fs/cgroup", os.W_OK):
        return "/sys/fs/cgroup is not writable"
    return None


def kind_works() -> bool:
    """Whether there is a `kind` and a Docker engine that answers."""
    if shutil.which("kind") is None or shutil.which("docker") is None:
        return False
    try:
        run(["docker", "info", "--format", "{{.ServerVersion}}"], timeout_s=10)
    except CommandFailed:
        return False
    return True


def prepare(*, with_nodes: bool, say: Say) -> dict[str, Path]:
    """Installs the missing packages and builds the missing programs; returns the programs' paths.

    Raises `Missing` naming what to install, before anything was changed, where it cannot itself.
    """
    if with_nodes and (reason := why_no_nodes()) is not None:
        raise Missing(reason)
    found = problems(with_nodes=with_nodes)
    if found:
        raise Missing("\n".join(found))
    packages.install(packages.missing(packages.needed(with_nodes=with_nodes)), say)
    return programs.obtain(with_nodes=with_nodes, say=say)


def problems(*, with_nodes: bool) -> list[str]:
    """What only the user can mend, as sentences; empty when `prepare` will do."""
    found: list[str] = []
    absent = packages.missing(packages.needed(with_nodes=with_nodes))
    if absent and not packages.may_install():
        found.append(f"Debian packages are missing: apt-get install {' '.join(absent)}")
    to_build = programs.missing(with_nodes=with_nodes)
    if to_build and (reason := programs.go_problem()) is not None:
        major, minor = programs.GO_MINOR
        found.append(
            f"{', '.join(to_build)} would have to be built, but {reason}: install Go"
            f" {major}.{minor}, or put these programs on PATH or into $KUBEBUILDER_ASSETS"
            " (Kubernetes 1.34, containerd 2.1, or newer)"
        )
    return found
