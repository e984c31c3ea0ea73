"""Names for Services and GPUs on nodes: the decisions, without a cluster."""

from __future__ import annotations

from typing import Any

from tests.cluster.addons import gpu_patch, hosts_lines


def _service(name: str, address: str | None) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "shop"}, "spec": {"clusterIP": address}}


def _slice(service: str, *endpoints: dict[str, Any]) -> dict[str, Any]:
    labels = {"kubernetes.io/service-name": service}
    return {
        "metadata": {"name": f"{service}-x", "namespace": "shop", "labels": labels},
        "endpoints": list(endpoints),
    }


def test_a_service_has_its_cluster_ip() -> None:
    lines = hosts_lines([_service("web", "10.1.2.3")], [_slice("web", {"addresses": ["10.9.9.9"]})])
    assert lines == ["10.1.2.3 web.shop.svc.cluster.local"]


def test_a_headless_service_has_its_ready_endpoints() -> None:
    ready = {"addresses": ["10.9.0.1"], "conditions": {"ready": True}, "hostname": "db-0"}
    waiting = {"addresses": ["10.9.0.2"], "conditions": {"ready": False}}
    unknown = {"addresses": ["10.9.0.3"], "conditions": {}}

    lines = hosts_lines([_service("db", "None")], [_slice("db", ready, waiting, unknown)])

    assert lines == [
        "10.9.0.1 db-0.db.shop.svc.cluster.local",
        "10.9.0.1 db.shop.svc.cluster.local",
        "10.9.0.3 db.shop.svc.cluster.local",
    ]


def test_a_service_without_an_address_has_no_name() -> None:
    assert hosts_lines([_service("alias", None)], []) == []


def test_a_slice_without_endpoints_is_no_error() -> None:
    piece = _slice("db") | {"endpoints": None}
    assert hosts_lines([_service("db", "None")], [piece]) == []


def test_a_node_without_gpus_gets_them_in_capacity_and_allocatable() -> None:
    node = {"status": {"capacity": {"cpu": "2"}, "allocatable": {"cpu": "2"}}}
    assert gpu_patch(node, 2) == [
        {"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": "2"},
        {"op": "add", "path": "/status/allocatable/nvidia.com~1gpu", "value": "2"},
    ]


def test_a_node_that_the_kubelet_has_reset_gets_them_again() -> None:
    reset = {"nvidia.com/gpu": "0"}
    patch = gpu_patch({"status": {"capacity": reset, "allocatable": reset}}, 2)
    assert [item["value"] for item in patch] == ["2", "2"]


def test_a_node_with_its_gpus_is_left_alone() -> None:
    have = {"nvidia.com/gpu": "2"}
    assert gpu_patch({"status": {"capacity": have, "allocatable": have}}, 2) == []
