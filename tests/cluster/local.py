"""The local provider: a whole Kubernetes out of plain programs, in namespaces of its own.

With root: each node is a pid, network and mount namespace (see `supervisor.py`), so that killing
one recorded process per node removes processes, mounts and interfaces; what stays on the machine is
a folder and cgroups, both recorded before they are made. Without root: the control plane alone, on
loopback.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import api, cgroups, node_setup
from tests.cluster.control_plane import AUDIT_LOG, ControlPlane
from tests.cluster.errors import ClusterError, CommandFailed
from tests.cluster.kubeconfig import write_kubeconfig
from tests.cluster.network import Network, free_slot, inside_network, namespace_of
from tests.cluster.node import Node
from tests.cluster.packages import cni_folder, which
from tests.cluster.pause import pause_archive
from tests.cluster.pki import Identity, Pki, make_pki
from tests.cluster.prepare import prepare
from tests.cluster.processes import kill_recorded, recorded_pid, spawn_recorded
from tests.cluster.programs import Say
from tests.cluster.provider import ClusterInfo
from tests.cluster.run import run
from tests.cluster.state import (
    REPOSITORY,
    ClusterFolder,
    ClusterRecord,
    cluster_folder,
    known_clusters,
    locked,
    state_home,
)
from tests.cluster.supervisor import Daemon, Spec

API_PORT = 6443
ETCD_PORT = 2379
CONTROL_PLANE_ONLY = "control-plane"
PROGRAMS = "bin"
_DAEMON_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_NAMESPACES = (
    *("unshare", "--net", "--mount", "--pid", "--ipc", "--uts"),
    # The child is the first process of the pid namespace and dies with the recorded parent.
    *("--fork", "--kill-child=SIGKILL", "--mount-proc", "--propagation", "private"),
)


@dataclass(frozen=True)
class LocalProvider:
    """A cluster called `name` with `num_nodes` nodes (0 to 2), each advertising `gpus_per_node`."""

    name: str
    num_nodes: int
    gpus_per_node: int
    say: Say

    @property
    def folder(self) -> ClusterFolder:
        return cluster_folder(self.name)

    def up(self) -> ClusterInfo:
        binaries = prepare(with_nodes=self.num_nodes > 0, say=self.say)
        with locked(state_home() / f"{self.name}.lock"):
            record = self.folder.record()
            if record is None or not self._serves(record):
                self._remove(record)
                self._start(self._take_slot(), binaries)
        return self._info(binaries)

    def down(self) -> None:
        with locked(state_home() / f"{self.name}.lock"):
            self._remove(self.folder.record())

    def _info(self, binaries: dict[str, Path]) -> ClusterInfo:
        return ClusterInfo(
            name=self.name,
            provider="local",
            kubeconfig=self.folder.kubeconfig,
            kubectl=binaries["kubectl"],
            helm=binaries["helm"],
            num_nodes=self.num_nodes,
            reaches_services=self.num_nodes > 0,
            audit_log=self.folder.path / AUDIT_LOG,
        )

    # ---- deciding ----

    def _serves(self, record: ClusterRecord) -> bool:
        """Whether the cluster that `record` tells of runs, and is the one that is asked for."""
        wanted = (len(record.nodes), record.gpus_per_node) == (self.num_nodes, self.gpus_per_node)
        supervised = record.nodes or (CONTROL_PLANE_ONLY,)
        alive = all(recorded_pid(self.folder.process(node)) for node in supervised)
        if not (wanted and alive and self.folder.kubeconfig.exists()):
            return False
        with api.client(self.folder.kubeconfig) as client:
            ready = all(api.node_is_ready(client, node) for node in record.nodes)
            return ready and api.answers(
                client, "/api/v1/namespaces/default/serviceaccounts/default"
            )

    def _take_slot(self) -> ClusterRecord:
        with locked(state_home() / "slots.lock"):
            slot = free_slot(record.slot for record in known_clusters())
            nodes = tuple(f"node{node_idx + 1}" for node_idx in range(self.num_nodes))
            record = ClusterRecord(
                name=self.name,
                provider="local",
                slot=slot,
                api_port=API_PORT if nodes else _free_port(),
                nodes=nodes,
                gpus_per_node=self.gpus_per_node,
                cgroups=tuple(f"octavo-{slot}-{self.name}-{node}" for node in nodes),
            )
            self.folder.write_record(record)
        return record

    # ---- acting ----

    def _start(self, record: ClusterRecord, found: dict[str, Path]) -> None:
        self.say(f"starting cluster {self.name}")
        binaries = _link_programs(self.folder.path / PROGRAMS, found)
        if record.nodes:
            # A copy: at its own path AppArmor lets it read no file of ours (Ubuntu).
            shutil.copy(which("dnsmasq"), binaries / "dnsmasq")
        plane = self._control_plane(record, binaries)
        nodes = [self._node(record, node_idx, plane) for node_idx in range(self.num_nodes)]
        self._write_credentials(plane, nodes)
        plane.write_config()
        for group in record.cgroups:
            cgroups.make(group)
        for folder, spec in self._specs(record, plane, nodes):
            self._supervise(folder, spec)
        if nodes:
            self._plug(record)
        self._wait_until_ready(record)

    def _control_plane(self, record: ClusterRecord, binaries: Path) -> ControlPlane:
        net = Network(record.slot)
        return ControlPlane(
            binaries=binaries,
            data=self.folder.path,
            pki=Pki(self.folder.path / "pki"),
            address=net.node_ip(0) if record.nodes else "127.0.0.1",
            api_port=record.api_port,
            etcd_port=ETCD_PORT if record.nodes else _free_port(),
            service_cidr=net.service_cidr,
            service_ip=net.service_ip,
            for_nodes=bool(record.nodes),
        )

    def _node(self, record: ClusterRecord, node_idx: int, plane: ControlPlane) -> Node:
        return Node(
            node_idx=node_idx,
            folder=self.folder.node(record.nodes[node_idx]),
            binaries=plane.binaries,
            pki=plane.pki,
            network=Network(record.slot),
            api_url=plane.url,
            cgroup=f"/{record.cgroups[node_idx]}",
            cni_binaries=cni_folder(),
        )

    def _write_credentials(self, plane: ControlPlane, nodes: Sequence[Node]) -> None:
        identities = plane.identities() + [i for node in nodes for i in node.identities()]
        identities.append(Identity("kube-proxy", "system:kube-proxy", "octavo"))
        pki = make_pki(plane.pki.folder, identities)
        for identity in identities:
            path = plane.kubeconfig(identity.name)
            write_kubeconfig(path, name=self.name, url=plane.url, pki=pki, identity=identity.name)
        shutil.copy(plane.kubeconfig("admin"), self.folder.kubeconfig)

    def _specs(
        self, record: ClusterRecord, plane: ControlPlane, nodes: Sequence[Node]
    ) -> list[tuple[Path, Spec]]:
        environment = {"PATH": _DAEMON_PATH, "HOME": "/root" if nodes else str(Path.home())}
        if not nodes:
            spec = Spec((), tuple(plane.daemons()), environment)
            return [(self.folder.node(CONTROL_PLANE_ONLY), spec)]
        specs: list[tuple[Path, Spec]] = []
        for node in nodes:
            node.write_config()
            setup = node_setup.mounts(node.folder) + node_setup.network(
                node.network, node.node_idx, len(nodes), node.name
            )
            daemons = node.daemons()
            if node.node_idx == 0:
                daemons = [*plane.daemons(), *daemons, *self._addons(record, plane, node)]
            specs.append((node.folder, Spec(tuple(setup), tuple(daemons), environment)))
        return specs

    def _addons(self, record: ClusterRecord, plane: ControlPlane, node: Node) -> list[Daemon]:
        hosts = node.folder / "service-hosts"
        dnsmasq = (
            *(
                str(plane.binaries / "dnsmasq"),
                "--keep-in-foreground",
                "--conf-file=/dev/null",
                "--pid-file=",
            ),
            *("--user=root", "--no-resolv", "--no-hosts", "--log-facility=-"),
            *(f"--listen-address={node.network.dns_ip}", "--bind-interfaces"),
            # It knows nobody to ask: any other name does not exist, which is said at once.
            *("--local=/#/", f"--addn-hosts={hosts}"),
        )
        arguments = (
            str(plane.kubeconfig("admin")),
            str(hosts),
            str(node.folder / "pids.json"),
            str(record.gpus_per_node),
        )
        watcher = (sys.executable, "-m", "tests.cluster.addons", *arguments)
        api_address = f"{plane.address}:{plane.api_port}"
        return [Daemon("dnsmasq", dnsmasq), Daemon("addons", watcher, after=api_address)]

    def _supervise(self, folder: Path, spec: Spec) -> None:
        (folder / "log").mkdir(parents=True, exist_ok=True)
        (folder / "spec.json").write_text(spec.to_json())
        argv = [sys.executable, "-m", "tests.cluster.supervisor", str(folder)]
        log = folder / "log" / "supervisor.log"
        spawn_recorded(
            [*(_NAMESPACES if spec.setup else ()), *argv],
            folder / "process",
            log,
            cwd=REPOSITORY,
            env={**spec.env, "PYTHONDONTWRITEBYTECODE": "1"},
        )
        api.wait_until(
            f"{folder.name} prepared (see {log})",
            lambda: (folder / "prepared").exists() or _ended(folder, log),
            timeout_s=30,
        )

    def _plug(self, record: ClusterRecord) -> None:
        """Cables from node1 to this machine and further nodes; they vanish with the namespaces."""
        net, bridge = Network(record.slot), node_setup.NODE_BRIDGE
        first = self._pid(record.nodes[0])
        cable = ("type", "veth", "peer", "name", "machine", "netns", str(first))
        run(["ip", "link", "add", net.host_interface, *cable])
        run(["ip", "address", "add", f"{net.host_ip}/24", "dev", net.host_interface])
        run(["ip", "link", "set", net.host_interface, "up"])
        run(["ip", "route", "add", net.whole, "via", net.node_ip(0)])
        there = inside_network(first)
        run([*there, "ip", "link", "set", "machine", "master", bridge, "up"])
        for node_idx, node in enumerate(record.nodes[1:], start=1):
            pid = self._pid(node)
            cable = ("type", "veth", "peer", "name", node_setup.UPLINK, "netns", str(pid))
            run([*there, "ip", "link", "add", node, *cable])
            run([*there, "ip", "link", "set", node, "master", bridge, "up"])
            for command in node_setup.join(net, node_idx, len(record.nodes)):
                run([*inside_network(pid), *command])

    def _pid(self, node: str) -> int:
        pid = recorded_pid(self.folder.process(node))
        if pid is None:
            raise ClusterError(f"{node} of cluster {self.name} does not run")
        return pid

    def _wait_until_ready(self, record: ClusterRecord) -> None:
        logs = self.folder.path / "*" / "log"
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        with api.client(self.folder.kubeconfig) as client:
            api.wait_until(
                f"API server ready (see {logs})",
                lambda: api.answers(client, "/readyz"),
                timeout_s=120,
            )
            self.say("API server ready")
            # Pods are refused until it exists, which is seconds after the API server calls itself
            # ready.
            api.wait_until(
                "default ServiceAccount", lambda: api.answers(client, account), timeout_s=90
            )
            for node in record.nodes:
                api.wait_until(
                    f"{node} ready (see {logs})",
                    lambda node=node: api.node_is_ready(client, node),  # type: ignore[misc]  # mypy infers no lambda with a default
                    timeout_s=120,
                )
                self.say(f"{node} ready")
        if record.nodes:
            self.load_image(pause_archive())

    def load_image(self, archive: Path) -> None:
        record = self.folder.record()
        if record is None or not record.nodes:
            raise ClusterError(f"cluster {self.name} has no node that could hold an image")
        identity = f"{archive.name} {archive.stat().st_mtime_ns}"
        for node in record.nodes:
            loaded = self.folder.node(node) / f"loaded-{archive.name}"
            if loaded.exists() and loaded.read_text() == identity:
                continue
            words = ("--namespace", "k8s.io", "images", "import", archive)
            run([*namespace_of(self._pid(node)), self.program("ctr"), *words])
            loaded.write_text(identity)

    def program(self, name: str) -> Path:
        """One that the cluster runs or is run by, which need not be on PATH."""
        return self.folder.path / PROGRAMS / name

    # ---- removing ----

    def _remove(self, record: ClusterRecord | None) -> None:
        """Undoes whatever of a cluster is there; safe at any stage of `up`, `down` or a crash."""
        for node in self.folder.supervised():
            kill_recorded(self.folder.process(node))
        if record is not None:
            for group in record.cgroups:
                cgroups.remove(group)
            if record.nodes:
                _unplug(Network(record.slot).host_interface)
        if self.folder.path.exists():
            shutil.rmtree(self.folder.path)


def _unplug(interface: str) -> None:
    """Removes this machine's end of the cable, and the other end and the route with it.

    It would go with the node's network namespace, but connections that were open when the node was
    killed keep that alive in the kernel until their last retransmission, two minutes later.
    """
    path = Path("/sys/class/net") / interface
    try:
        if path.exists():
            run(["ip", "link", "delete", interface])
    except CommandFailed:
        if path.exists():  # else the namespace took it away in the same moment
            raise


def _ended(folder: Path, log: Path) -> bool:
    """Raises when the supervisor of `folder` is gone before it was done preparing."""
    if recorded_pid(folder / "process") is None and (folder / "process").exists():
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
        raise ClusterError(f"{folder.name} ended while it was prepared:\n{tail}")
    return False


def _link_programs(folder: Path, binaries: dict[str, Path]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in binaries.items():
        (folder / name).symlink_to(path)
    return folder


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
