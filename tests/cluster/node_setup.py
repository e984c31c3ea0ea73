"""The commands that turn fresh namespaces into a node: mounts, sysctls, addresses.

Only says what to do, after a look at the filesystem of the cluster's folder.

    /run                   an empty tmpfs: sockets, network namespaces of pods /var
    the machine's, with a layer in memory over it; then, from the node's folder,
    /var/lib/{kubelet,containerd}, /var/log/pods /var/lib/octavo/models the user's cache of models,
    read-only
Nothing of this is visible outside of the node or outlives it.
"""

from __future__ import annotations

from pathlib import Path

from tests.cluster.network import Network
from tests.cluster.run import run
from tests.cluster.state import cache_home

Command = tuple[str, ...]

NODE_BRIDGE = "nodes"
UPLINK = "uplink"
PYCACHE = "/var/lib/octavo/pycache"
_MOUNTED_AT = {
    "kubelet": "/var/lib/kubelet",
    "containerd": "/var/lib/containerd",
    "pods": "/var/log/pods",
}
# What the kubelet insists on for the whole kernel. It reads these files, finds its values, writes
# nothing.
_SHADOWED_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


def mounts(node_folder: Path) -> list[Command]:
    """Gives the node its own /run and /var. Sources are staged first: they may lie below /var."""
    stage = "/run/octavo"
    sources = {name: node_folder / name for name in _MOUNTED_AT} | {"models": models_cache()}
    commands: list[Command] = [
        ("mount", "--make-rshared", "/"),
        ("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run"),
        ("mkdir", "-p", "/run/lock", "/run/netns", f"{stage}/upper", f"{stage}/work"),
    ]
    for name, source in (sources | {"folder": node_folder.parent}).items():
        commands += _bind(source, f"{stage}/{name}")
    if on_overlay(node_folder.parent):
        # In a container: overlays do not stack up, so layers of images are kept in memory.
        commands.append(("mount", "-t", "tmpfs", "tmpfs", f"{stage}/containerd"))
    layers = f"lowerdir=/var,upperdir={stage}/upper,workdir={stage}/work"
    commands.append(("mount", "-t", "overlay", "-o", layers, "overlay", "/var"))
    if node_folder.is_relative_to("/var"):
        commands += _bind(f"{stage}/folder", str(node_folder.parent))
    for name, target in _MOUNTED_AT.items():
        commands += _bind(f"{stage}/{name}", target)
    commands += _bind(f"{stage}/models", "/var/lib/octavo/models")
    commands.append(("mount", "-o", "remount,bind,ro", "/var/lib/octavo/models"))
    commands.append(("mkdir", "--parents", "--mode=1777", PYCACHE))
    return commands + _sysctl_shadows(stage)


def models_cache() -> Path:
    return cache_home() / "models"


def on_overlay(path: Path) -> bool:
    """Whether `path` lies in an overlay filesystem, as everything in a container does."""
    while not path.exists():
        path = path.parent
    return run(["stat", "--file-system", "--format=%T", path]).strip() == "overlayfs"


def _bind(source: Path | str, target: str) -> list[Command]:
    return [("mkdir", "-p", str(source), target), ("mount", "--bind", str(source), target)]


def _sysctl_shadows(stage: str) -> list[Command]:
    commands: list[Command] = []
    for name, value in _SHADOWED_SYSCTLS.items():
        file = f"{stage}/{name.replace('/', '.')}"
        commands.append(("sh", "-c", f"echo {value} > {file}"))
        commands.append(("mount", "--bind", file, f"/proc/sys/{name}"))
    return commands


def network(net: Network, node_idx: int, num_nodes: int, name: str) -> list[Command]:
    """Addresses and routes of one node; `link` brings its cables later."""
    commands: list[Command] = [
        ("hostname", name),
        ("ip", "link", "set", "lo", "up"),
        ("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
    ]
    if node_idx == 0:
        # A bridge holds the address: it is up before anything is plugged into it.
        commands += [
            ("ip", "link", "add", NODE_BRIDGE, "type", "bridge"),
            ("ip", "address", "add", f"{net.node_ip(0)}/24", "dev", NODE_BRIDGE),
            ("ip", "link", "set", NODE_BRIDGE, "up"),
        ]
        commands += _routes(net, node_idx, num_nodes, NODE_BRIDGE)
    return commands


def join(net: Network, node_idx: int, num_nodes: int) -> list[Command]:
    """What a further node does inside once its cable, `UPLINK`, is there."""
    return [
        ("ip", "address", "add", f"{net.node_ip(node_idx)}/24", "dev", UPLINK),
        ("ip", "link", "set", UPLINK, "up"),
        *_routes(net, node_idx, num_nodes, UPLINK),
    ]


def _routes(net: Network, node_idx: int, num_nodes: int, device: str) -> list[Command]:
    """To Services (their addresses are rewritten on the way out) and to the other nodes' pods.

    There is no default route: a test cluster reaches nothing beyond itself and this machine.
    """
    commands: list[Command] = [("ip", "route", "add", net.service_cidr, "dev", device)]
    for other_idx in range(num_nodes):
        if other_idx != node_idx:
            via = net.node_ip(other_idx)
            # onlink: the other node may be plugged in later
            commands.append(
                ("ip", "route", "add", net.pod_cidr(other_idx), "via", via, "dev", device, "onlink")
            )
    return commands
