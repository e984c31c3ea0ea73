"""The Debian packages of a node, and installing them. Standard library only, see `programs.py`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tests.cluster.errors import Missing
from tests.cluster.run import run

# Package, and a program or folder by which it is known to be there, whoever installed it.
_CONTROL_PLANE = {"iproute2": "ip", "util-linux": "setpriv"}
_NODE = {
    "containerd": "containerd",
    "runc": "runc",
    "containernetworking-plugins": "bridge",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "socat": "socat",
    "ethtool": "ethtool",
    "dnsmasq-base": "dnsmasq",
    "procps": "sysctl",
}
_IMAGES = {"buildah": "buildah", "mmdebstrap": "mmdebstrap", "uidmap": "newuidmap", "gcc": "cc"}
_CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))
_SBIN = "/usr/local/sbin:/usr/sbin:/sbin"


def needed(*, with_nodes: bool, with_images: bool) -> dict[str, str]:
    chosen = dict(_CONTROL_PLANE)
    if with_nodes:
        chosen |= _NODE
    if with_images:
        chosen |= _IMAGES
    return chosen


def missing(packages: dict[str, str]) -> list[str]:
    """The packages whose program is nowhere to be found."""
    return [package for package, program in packages.items() if not _is_there(package, program)]


def _is_there(package: str, program: str) -> bool:
    if package == "containernetworking-plugins":
        return any((folder / program).exists() for folder in _CNI_FOLDERS)
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_SBIN}") is not None


def install(packages: Iterable[str], say: Callable[[str], None]) -> None:
    """Installs by apt-get as root; raises `Missing` with the command to give where it cannot."""
    names = list(packages)
    if not names:
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", *names]
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise Missing(f"please install first: {' '.join(command)}")
    say(f"installing {len(names)} Debian packages: {' '.join(names)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], env=quiet)
    run([*command, "-q"], env=quiet, timeout_s=1200)


def cni_folder() -> Path:
    """Where the CNI plugins are."""
    for folder in _CNI_FOLDERS:
        if (folder / "bridge").exists():
            return folder
    raise Missing("no CNI plugins in /usr/lib/cni or /opt/cni/bin: containernetworking-plugins")
