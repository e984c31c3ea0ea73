"""Which pods are of the newest template."""

import pytest

from octavo_operator import generations
from octavo_operator.snapshot import Snapshot


@pytest.fixture
def snapshot(pod_body, replica_set_body):
    """Two templates, a pod of each; `revision` is the Deployment's."""

    def make(revision="2", generation=5, observed=5):
        annotations = {} if revision is None else {"deployment.kubernetes.io/revision": revision}
        deployment = {
            "metadata": {"name": "chat", "generation": generation, "annotations": annotations},
            "status": {"observedGeneration": observed},
        }
        pods = [pod_body(name, {"labels": {"pod-template-hash": name}}) for name in ("new", "old")]
        replica_sets = (replica_set_body("old", 1), replica_set_body("new", 2))
        return Snapshot({"Deployment": deployment}, tuple(pods), replica_sets)

    return make


def names(pods):
    return [pod["metadata"]["name"] for pod in pods]


@pytest.mark.parametrize(
    ("given", "newest", "earlier"),
    [
        ({}, ["new"], ["old"]),
        ({"revision": "1"}, ["old"], ["new"]),
        ({"observed": 4}, [], ["new", "old"]),
        ({"revision": "3"}, [], ["new", "old"]),
        ({"revision": None}, [], ["new", "old"]),
    ],
    ids=["by revision", "rolled back", "not observed", "ReplicaSet not seen yet", "no revision"],
)
def test_pods_are_told_apart_by_their_template(snapshot, given, newest, earlier):
    seen = snapshot(**given)

    assert names(generations.newest_pods(seen)) == newest
    assert names(generations.earlier_pods(seen)) == earlier


def test_without_a_deployment_no_pod_is_of_the_newest_template(pod_body):
    assert generations.newest_pods(Snapshot({}, (pod_body(),))) == ()


@pytest.mark.parametrize(("observed", "newest"), [(5, ["chat-1"]), (4, [])])
def test_a_stateful_set_names_its_newest_template(pod_body, observed, newest):
    stateful = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "chat", "generation": 5},
        "status": {"observedGeneration": observed, "updateRevision": "chat-b"},
    }
    pods = tuple(
        pod_body(name, {"labels": {"controller-revision-hash": revision}})
        for name, revision in (("chat-0", "chat-a"), ("chat-1", "chat-b"))
    )

    assert names(generations.newest_pods(Snapshot({"StatefulSet": stateful}, pods))) == newest


@pytest.mark.parametrize(
    ("current", "is_settled"), [("chat-b", True), ("chat-a", False)], ids=["complete", "under way"]
)
def test_a_stateful_set_is_settled_once_its_newest_template_is_the_current_one(current, is_settled):
    status = {"observedGeneration": 5, "updateRevision": "chat-b", "currentRevision": current}
    stateful = {"kind": "StatefulSet", "metadata": {"name": "chat", "generation": 5}}

    seen = Snapshot({"StatefulSet": {**stateful, "status": status}})
    assert generations.is_settled(seen) is is_settled
