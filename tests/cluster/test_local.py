"""The local provider: repeated, killed half way, side by side, and gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster import api
from tests.cluster.addons import GPU_RESOURCE
from tests.cluster.leftovers import leftovers, network_namespace
from tests.cluster.local import LocalProvider
from tests.cluster.network import namespace_of
from tests.cluster.prepare import why_no_nodes
from tests.cluster.processes import recorded_pid
from tests.cluster.provider import ClusterInfo
from tests.cluster.run import run
from tests.cluster.state import REPOSITORY, ClusterFolder, cluster_folder
from tests.cluster.testing import Kubectl, daemon_pid, wait_for

pytestmark = pytest.mark.cluster

_GPUS = 3


def _ignore(text: str) -> None:
    del text


def _needs_nodes() -> None:
    if (reason := why_no_nodes()) is not None:
        pytest.skip(f"the local provider runs no nodes here: {reason}")


@pytest.fixture
def spare(cluster_session_name: str) -> Iterator[LocalProvider]:
    """A provider of a cluster that is not there, and will not be afterwards."""
    _needs_nodes()
    provider = LocalProvider(f"{cluster_session_name}-spare", 1, _GPUS, _ignore)
    provider.down()
    yield provider
    provider.down()


@pytest.fixture(scope="module")
def side(cluster_session_name: str) -> Iterator[LocalProvider]:
    """A second cluster, up, beside the session's."""
    _needs_nodes()
    provider = LocalProvider(f"{cluster_session_name}-side", 1, _GPUS, _ignore)
    provider.down()
    provider.up()
    yield provider
    provider.down()


def _nodes_up(folder: ClusterFolder) -> bool:
    pids = folder.node("node1") / "pids.json"
    return pids.exists() and '"kubelet"' in pids.read_text()


_STAGES: dict[str, Callable[[ClusterFolder], bool]] = {
    "what it will make is on record": lambda folder: (folder.path / "cluster.json").exists(),
    "a node's process is there": lambda folder: folder.process("node1").exists(),
    "the node's daemons run": _nodes_up,
}


def _kill_up_at(provider: LocalProvider, reached: Callable[[ClusterFolder], bool]) -> None:
    """SIGKILLs an `up` of its own process as soon as the stage is reached."""
    words = ["up", "--name", provider.name, "--nodes", "1", "--gpus", str(_GPUS)]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.cluster", *words],
        cwd=REPOSITORY,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        api.wait_until("stage", lambda: reached(provider.folder), timeout_s=60)
        process.kill()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("stage", list(_STAGES))
def test_down_removes_what_a_killed_up_left(spare: LocalProvider, stage: str) -> None:
    _kill_up_at(spare, _STAGES[stage])
    record = spare.folder.record()
    assert record is not None
    pid = recorded_pid(spare.folder.process("node1"))
    namespaces = {network_namespace(pid)} if pid else set()
    namespaces.discard(network_namespace(os.getpid()))

    spare.down()

    wait_for("nothing left", lambda: leftovers(record, namespaces) == [], timeout_s=10)


def test_up_works_after_a_killed_up(spare: LocalProvider) -> None:
    _kill_up_at(spare, _nodes_up)

    info = spare.up()

    nodes = Kubectl(info, "default").get("nodes")["items"]
    assert [node["metadata"]["name"] for node in nodes] == ["node1"]


def test_down_removes_everything(spare: LocalProvider) -> None:
    info = spare.up()
    record = spare.folder.record()
    pid = recorded_pid(spare.folder.process("node1"))
    assert record is not None
    assert pid is not None
    namespaces = {network_namespace(pid)}
    assert leftovers(record, namespaces), "the check must see a cluster that is there"

    spare.down()

    wait_for("nothing left", lambda: leftovers(record, namespaces) == [], timeout_s=10)
    assert not info.kubeconfig.exists()


def test_down_of_nothing_does_nothing(spare: LocalProvider) -> None:
    spare.down()
    assert not spare.folder.path.exists()


def test_a_second_up_changes_nothing(side: LocalProvider) -> None:
    record = side.folder.process("node1")
    before = record.read_text()
    side.up()
    assert record.read_text() == before


def test_two_clusters_are_apart(side: LocalProvider, cluster: ClusterInfo) -> None:
    other = Kubectl(side.up(), "default")
    this = Kubectl(cluster, "default")
    other("create", "configmap", "only-here")

    assert "only-here" in other("get", "configmaps")
    assert "only-here" not in this("get", "configmaps")


def test_a_killed_api_server_comes_back(side: LocalProvider) -> None:
    folder = side.folder.node("node1")
    before = daemon_pid(folder, "kube-apiserver")
    _kill_daemon(side, "kube-apiserver")

    wait_for("another process", lambda: daemon_pid(folder, "kube-apiserver") != before)
    kubectl = Kubectl(side.up(), "default")
    assert wait_for("an answer", lambda: kubectl("get", "--raw=/readyz")) == "ok"


def test_gpus_outlive_the_kubelet(side: LocalProvider) -> None:
    folder = side.folder.node("node1")
    kubectl = Kubectl(side.up(), "default")

    def gpus() -> str:
        status = kubectl.get("node", "node1")["status"]
        return str(status["allocatable"].get(GPU_RESOURCE, ""))

    wait_for("GPUs", lambda: gpus() == str(_GPUS))
    before = daemon_pid(folder, "kubelet")
    _kill_daemon(side, "kubelet")
    wait_for("another kubelet", lambda: daemon_pid(folder, "kubelet") != before)
    _take_gpus_away(kubectl)

    wait_for("GPUs again", lambda: gpus() == str(_GPUS))


def _take_gpus_away(kubectl: Kubectl) -> None:
    """What a kubelet does to resources it does not know when it registers anew."""
    patch = f'{{"status": {{"capacity": {{"{GPU_RESOURCE}": "0"}}}}}}'
    kubectl("patch", "node", "node1", "--subresource=status", "--type=merge", "--patch", patch)


def _kill_daemon(provider: LocalProvider, daemon: str) -> None:
    pid = recorded_pid(provider.folder.process("node1"))
    assert pid is not None
    inner = daemon_pid(provider.folder.node("node1"), daemon)
    run([*namespace_of(pid), "kill", "-KILL", str(inner)])


def test_models_of_the_cache_are_read_only_on_the_node(side: LocalProvider) -> None:
    pid = recorded_pid(side.folder.process("node1"))
    assert pid is not None
    mounts = run([*namespace_of(pid), "cat", "/proc/self/mounts"])
    options = [line.split()[3] for line in mounts.splitlines() if "/var/lib/octavo/models" in line]
    assert [option.split(",")[0] for option in options] == ["ro"]
    assert not Path("/var/lib/octavo").exists(), "nothing of it may be on the machine itself"


def test_without_root_there_is_a_control_plane_alone(cluster_session_name: str) -> None:
    provider = LocalProvider(f"{cluster_session_name}-plane", 0, 0, _ignore)
    provider.down()
    # Inside of this user namespace the process is nobody in particular.
    unprivileged = ["unshare", "--user", "--map-user=1000"] if os.geteuid() == 0 else []
    python = [*unprivileged, sys.executable, "-m", "tests.cluster"]
    try:
        run([*python, "up", "--name", provider.name], cwd=REPOSITORY, env={"KUBECONFIG": ""})
        record = provider.folder.record()
        assert record is not None
        assert record.nodes == ()
        kubectl = Kubectl(provider.up(), "default")
        assert kubectl.get("serviceaccount", "default")["metadata"]["namespace"] == "default"
    finally:
        run([*python, "down", "--name", provider.name], cwd=REPOSITORY)
    wait_for("nothing left", lambda: leftovers(record, set()) == [], timeout_s=10)


def test_a_name_unfit_for_an_interface_is_refused() -> None:
    with pytest.raises(Exception, match="'My_Cluster'"):
        cluster_folder("My_Cluster")
