"""Wanted against observed."""

import copy

import pytest

from octavo_operator import api, children, plan
from octavo_operator.snapshot import Snapshot


@pytest.fixture
def manifests(service_body, engine_defaults):
    return children.wanted(api.parse(service_body()), 1, engine_defaults, "octavo-system")


def observed(manifests):
    snapshot = Snapshot()
    for manifest in manifests:
        snapshot = snapshot.with_child(copy.deepcopy(manifest))
    return snapshot


def changed(manifests, kind, change):
    snapshot = observed(manifests)
    change(snapshot.children[kind])
    return snapshot


def test_what_is_absent_is_applied(manifests):
    todo = plan.diff(manifests, Snapshot(), "uid-1")

    assert [(item.manifest["kind"], item.cause) for item in todo.items] == [
        ("ServiceAccount", "missing"),
        ("Service", "missing"),
        ("PodDisruptionBudget", "missing"),
        ("NetworkPolicy", "missing"),
        ("Deployment", "missing"),
    ]


def test_what_is_as_wanted_is_left_alone(manifests):
    assert plan.diff(manifests, observed(manifests), "uid-1").items == ()


def test_foreign_fields_are_left_alone(manifests):
    def add(deployment):
        deployment["metadata"]["labels"]["team"] = "ml"
        deployment["spec"]["template"]["spec"]["containers"].append({"name": "sidecar"})

    assert plan.diff(manifests, changed(manifests, "Deployment", add), "uid-1").items == ()


def test_a_new_wish_is_applied(manifests, service_body, engine_defaults):
    wish = children.wanted(api.parse(service_body()), 5, engine_defaults, "octavo-system")

    (item,) = plan.diff(wish, observed(manifests), "uid-1").items
    assert (item.manifest["kind"], item.cause) == ("Deployment", "changed")


def test_a_drifted_field_is_named(manifests):
    def drift(deployment):
        deployment["spec"]["replicas"] = 7

    (item,) = plan.diff(manifests, changed(manifests, "Deployment", drift), "uid-1").items
    assert (item.cause, item.detail) == ("drifted", "spec.replicas: wanted 1, found 7")


def test_an_object_of_somebody_else_is_not_taken(manifests):
    def disown(service):
        service["metadata"]["annotations"] = {}
        service["metadata"]["ownerReferences"] = []

    todo = plan.diff(manifests, changed(manifests, "Service", disown), "uid-1")
    assert [found["kind"] for found in todo.foreign] == ["Service"]
    assert todo.items == ()


def test_an_object_under_another_controller_is_not_taken(manifests):
    def other(deployment):
        owner = {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "u", "controller": True}
        deployment["metadata"]["ownerReferences"] = [owner]

    todo = plan.diff(manifests, changed(manifests, "Deployment", other), "uid-1")
    assert [found["kind"] for found in todo.foreign] == ["Deployment"]


def test_an_orphan_of_ours_is_taken_back(manifests):
    def orphan(service):
        service["metadata"]["ownerReferences"] = []

    todo = plan.diff(manifests, changed(manifests, "Service", orphan), "uid-1")
    assert [(item.manifest["kind"], item.cause) for item in todo.items] == [("Service", "drifted")]


@pytest.mark.parametrize(
    "mark",
    [
        lambda child: child["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
        lambda child: child["metadata"]["ownerReferences"][0].update(uid="uid-0"),
    ],
    ids=["being deleted", "owned by a service before this one"],
)
def test_a_leaving_child_is_waited_for(manifests, mark):
    todo = plan.diff(manifests, changed(manifests, "Deployment", mark), "uid-1")

    assert [found["kind"] for found in todo.leaving] == ["Deployment"]
    assert todo.items == ()
