"""The Debian packages of a local cluster, and installing them. Standard library only."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from tests.cluster.errors import Missing
from tests.cluster.run import run

# Package -> a program by which it is known to be there, whoever installed it.
_CONTROL_PLANE = {"iproute2": "ip", "util-linux": "setpriv"}
_NODE = {
    "runc": "runc",
    "containernetworking-plugins": "ptp",
    "iptables": "iptables",
    "ipset": "ipset",  # for what enforces policies
    "conntrack": "conntrack",
    "socat": "socat",
    "ethtool": "ethtool",
    "dnsmasq-base": "dnsmasq",
    # for images: the pause program, the operator's base and build
    "gcc": "cc",
    "libc6-dev": "/usr/include/signal.h",
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
}
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_SYSTEM_FOLDERS = "/usr/local/sbin:/usr/sbin:/sbin"


def needed(*, with_nodes: bool) -> Mapping[str, str]:
    """Package names and the program that each is known by."""
    return MappingProxyType(_CONTROL_PLANE | _NODE if with_nodes else _CONTROL_PLANE)


def missing(packages: Mapping[str, str]) -> list[str]:
    """The packages whose program is nowhere to be found."""
    return [package for package, program in packages.items() if not _is_there(program)]


def _is_there(program: str) -> bool:
    if any((folder / program).exists() for folder in _CNI_FOLDERS):
        return True
    if program.startswith("/"):
        return Path(program).exists()
    return _search(program) is not None


def _search(program: str) -> str | None:
    """Also where daemons are, which is not on every user's PATH."""
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SYSTEM_FOLDERS}")


def which(program: str) -> str:
    """The path of an installed program; raises `Missing` naming it."""
    found = _search(program)
    if found is None:
        raise Missing(f"{program} is not installed")
    return found


def may_install() -> bool:
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def install(names: Sequence[str], say: Callable[[str], None]) -> None:
    """Installs by apt-get; raises `Missing` with the command to give where this user cannot."""
    if not names:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *names]
    if not may_install():
        raise Missing(f"please install first: {' '.join(command)}")
    say(f"installing {len(names)} Debian packages: {' '.join(names)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], env=quiet)
    run([*command, "-q"], env=quiet, timeout_s=1200)


def cni_folder() -> Path:
    """Where the CNI plugins are."""
    for folder in _CNI_FOLDERS:
        if (folder / "ptp").exists():
            return folder
    raise Missing("no CNI plugins in /usr/lib/cni or /opt/cni/bin: containernetworking-plugins")
