"""The decisions of the providers that need no machine: addresses, mounts, configurations."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import hostenv, network
from tests.cluster.choose import choose
from tests.cluster.errors import ClusterError
from tests.cluster.given import GivenProvider
from tests.cluster.kind import NODE_PREFIX, cluster_config
from tests.cluster.network import Network
from tests.cluster.node_setup import PYCACHE
from tests.cluster.state import ClusterRecord, cluster_folder


def _ignore(text: str) -> None:
    del text


def test_slots_do_not_overlap() -> None:
    blocks = [ipaddress.IPv4Network(Network(slot).whole) for slot in range(network.NUM_SLOTS)]
    assert len(set(blocks)) == network.NUM_SLOTS
    net = Network(3)
    parts = [net.pod_cidr(0), net.pod_cidr(1), net.service_cidr, f"{net.host_ip}/32"]
    networks = [ipaddress.IPv4Network(part) for part in parts]
    assert all(part.subnet_of(ipaddress.IPv4Network(net.whole)) for part in networks)
    assert not any(a.overlaps(b) for a in networks for b in networks if a is not b)


def test_a_slot_that_the_machine_routes_elsewhere_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    office = [ipaddress.IPv4Network("10.180.0.0/15")]
    monkeypatch.setattr(network, "_routed_networks", lambda: office)
    assert network.free_slot([2]) == 3


def test_a_machine_that_routes_all_private_addresses_gets_a_sentence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    everything = [ipaddress.IPv4Network("10.0.0.0/8")]
    monkeypatch.setattr(network, "_routed_networks", lambda: everything)
    with pytest.raises(ClusterError, match=r"10\.180\.0\.0/16"):
        network.free_slot([])


def _of_this_machine(overlay: dict[str, Any]) -> list[dict[str, Any]]:
    """The overlay's mounts but for the folder that only the node has."""
    mounts: list[dict[str, Any]] = overlay["spec"]["containers"][0]["volumeMounts"]
    return [mount for mount in mounts if mount["mountPath"] != PYCACHE]


def test_the_overlay_mounts_every_folder_once_read_only_at_its_own_path() -> None:
    overlay = hostenv.engine_overlay()
    mounts = _of_this_machine(overlay)
    paths = [Path(mount["mountPath"]) for mount in mounts]
    on_node = {v["name"]: v["hostPath"]["path"] for v in overlay["spec"]["volumes"]}

    assert all(mount["readOnly"] for mount in mounts)
    assert [on_node[mount["name"]] for mount in mounts] == [str(path) for path in paths]
    assert not any(a.is_relative_to(b) for a in paths for b in paths if a != b)
    assert Path("/usr") in paths


def test_on_kind_the_overlay_looks_below_the_nodes_prefix() -> None:
    overlay = hostenv.engine_overlay(node_prefix=NODE_PREFIX)
    on_node = {v["name"]: v["hostPath"]["path"] for v in overlay["spec"]["volumes"]}
    places = [on_node[mount["name"]] for mount in _of_this_machine(overlay)]
    assert all(place.startswith(f"{NODE_PREFIX}/") for place in places)


def test_kind_gets_one_control_plane_and_the_rest_workers() -> None:
    roles = [node["role"] for node in cluster_config(2)["nodes"]]
    assert roles == ["control-plane", "worker"]


def test_a_record_is_read_back_as_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record = ClusterRecord("x", "local", 1, 6443, ("node1",), 2, ("octavo-1-x-node1",))
    folder = cluster_folder("x")
    assert folder.record() is None
    folder.write_record(record)
    assert folder.record() == record


def test_a_foreign_kubeconfig_is_used_and_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    provider = choose("demo", num_nodes=1, gpus_per_node=0, say=_ignore)
    assert isinstance(provider, GivenProvider)

    provider.down()

    assert kubeconfig.exists()
    with pytest.raises(ClusterError, match="cannot be put on the nodes"):
        provider.load_image(tmp_path / "image.tar")


def test_the_kubeconfig_of_the_cluster_itself_does_not_make_it_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    folder = cluster_folder("demo")
    folder.write_record(ClusterRecord("demo", "local", 0, 6443, ("node1",)))
    folder.kubeconfig.write_text("{}")
    monkeypatch.setenv("KUBECONFIG", str(folder.kubeconfig))

    mine = choose("demo", num_nodes=1, gpus_per_node=0, say=_ignore)
    others = choose("test0", num_nodes=1, gpus_per_node=0, say=_ignore)

    assert not isinstance(mine, GivenProvider)
    assert isinstance(others, GivenProvider)


def test_a_kubeconfig_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/no/such/config")
    with pytest.raises(ClusterError, match="/no/such/config"):
        choose("demo", num_nodes=1, gpus_per_node=0, say=_ignore)
