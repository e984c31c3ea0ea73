"""What of a local cluster is still on this machine: for tests that want nothing to be."""

from __future__ import annotations

from pathlib import Path

from tests.cluster import cgroups
from tests.cluster.network import Network
from tests.cluster.run import run
from tests.cluster.state import ClusterRecord, cluster_folder


def network_namespace(pid: int) -> str:
    """The identity of a process's network namespace, such as net:[4026532201]."""
    return str(Path(f"/proc/{pid}/ns/net").readlink())


def leftovers(record: ClusterRecord, namespaces: set[str]) -> list[str]:
    """One line per process, mount, interface, route, cgroup, namespace or file; [] is clean.

    `namespaces` are the network namespaces that the cluster's nodes had.
    """
    folder = str(cluster_folder(record.name).path)
    return [
        *_processes(folder, namespaces),
        *_lines("mount", Path("/proc/self/mountinfo").read_text(), (folder, "octavo/upper")),
        *_lines("network", _network_state(), _network_words(record)),
        *(
            f"cgroup {group}"
            for root in cgroups.hierarchies()
            for name in record.cgroups
            if (group := root / name).exists()
        ),
        *([f"folder {folder}"] if Path(folder).exists() else []),
    ]


def _processes(folder: str, namespaces: set[str]) -> list[str]:
    found: list[str] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            namespace = str((process / "ns" / "net").readlink())
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if folder in command or namespace in namespaces:
            found.append(f"process {process.name} {command or '(no command line)'}")
    return found


def _network_state() -> str:
    return run(["ip", "link"]) + run(["ip", "route", "show", "table", "all"]) + _named_namespaces()


def _named_namespaces() -> str:
    return run(["ip", "netns", "list"])


def _network_words(record: ClusterRecord) -> tuple[str, ...]:
    if not record.nodes:
        return ()
    net = Network(record.slot)
    return (f" {net.host_interface}", f"{net.host_interface}@", net.whole.rsplit(".", 2)[0] + ".")


def _lines(kind: str, text: str, words: tuple[str, ...]) -> list[str]:
    return [f"{kind} {line}" for line in text.splitlines() if any(w in line for w in words)]
