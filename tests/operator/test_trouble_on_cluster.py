"""Trouble as a pod, the scheduler or admission tells it, seen in the conditions."""

import pytest
from tests.operator.cluster_operator import (
    answer,
    condition,
    engine_container,
    has_reason,
    make_ready,
    name_of,
    pods,
    service,
    set_status,
    wait_for_pods,
)

pytestmark = pytest.mark.cluster


CRASHED = {"exitCode": 2, "reason": "Error", "containerID": "containerd://x"}


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (
            {
                "terminated": {
                    **CRASHED,
                    "message": '{"reason": "ModelUnreadable", "message": "no config.json"}',
                }
            },
            "ModelUnreadable",
            "ended: no config.json",
        ),
        ({"terminated": {**CRASHED, "reason": "OOMKilled"}}, "OOMKilled", "killed for memory"),
        ({"terminated": CRASHED}, "CrashLoop", "exit code 2"),
        (
            {"waiting": {"reason": "ErrImageNeverPull", "message": "…"}},
            "ImagePull",
            "cannot get image localhost/octavo-engine:absent",
        ),
    ],
)
def test_trouble_of_a_pod_is_told_with_pod_and_cause(
    shared_operator, kubectl, state, reason, words
):
    kubectl.apply(service())
    (pod,) = wait_for_pods(kubectl, 1)
    container = engine_container(pod, restartCount=1, state=state)

    set_status(kubectl, pod, {"phase": "Pending", "containerStatuses": [container]})

    kubectl.wait_until(reason, has_reason(kubectl, reason))
    for condition_type in ("Ready", "Degraded", "Available"):
        told = condition(kubectl, condition_type)
        assert name_of(pod) in told["message"]
        assert words in told["message"]


def test_an_evicted_pod_is_told(shared_operator, kubectl):
    """As a kubelet short of memory writes it."""
    kubectl.apply(service())
    (pod,) = wait_for_pods(kubectl, 1)

    evicted = {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."}
    set_status(kubectl, pod, evicted)
    wait_for_pods(kubectl, 2)  # its replacement finds a place, so that it has no trouble of its own

    kubectl.wait_until("told", has_reason(kubectl, "PodFailed"))
    assert condition(kubectl)["message"] == (
        f"pod {name_of(pod)} has failed: Evicted: The node was low on memory."
    )


def test_a_lost_replica_is_told(shared_operator, kubectl):
    make_ready(kubectl, replicas=2)
    lost = pods(kubectl)[0]

    answer(kubectl, lost, is_ready=False)

    kubectl.wait_until("one is missing", has_reason(kubectl, "MinimumReplicasUnavailable"))
    assert condition(kubectl)["message"].startswith("1 of 2 replicas answer; pod ")
    assert condition(kubectl, "Available")["status"] == "True"


def test_a_pod_that_fits_nowhere_is_told(shared_operator, kubectl, api_server):
    kubectl.apply(service())
    kubectl.wait_until("a pod", lambda: pods(kubectl))
    if api_server.num_nodes == 0:  # no scheduler judges: its sentence is written for it
        sentence = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"conditions": [{**unplaced, "message": sentence}]}
        set_status(kubectl, pods(kubectl)[0], status)

    kubectl.wait_until("unschedulable", has_reason(kubectl, "Unschedulable"))
    told = condition(kubectl)["message"]
    assert told.startswith(f"pod {name_of(pods(kubectl)[0])} fits on no node: ")
    assert "node" in told


def test_a_quota_is_told(shared_operator, kubectl):
    kubectl("create", "quota", "none", "--hard=pods=0")

    kubectl.apply(service())

    kubectl.wait_until("quota", has_reason(kubectl, "QuotaExceeded"))
    assert "exceeded quota: none" in condition(kubectl)["message"]


def test_a_trouble_and_its_end_are_told_by_events(shared_operator, kubectl):
    make_ready(kubectl, replicas=1)
    (pod,) = pods(kubectl)
    ended = {"terminated": {**CRASHED, "reason": "OOMKilled"}}
    container = {"name": "engine", "image": "x", "imageID": "", "restartCount": 1, "ready": False}
    set_status(kubectl, pod, {"containerStatuses": [{**container, "state": ended}]})
    answer(kubectl, pod, is_ready=False)
    kubectl.wait_until("OOMKilled", has_reason(kubectl, "OOMKilled"))
    answer(kubectl, pod)
    kubectl.wait_until("well again", has_reason(kubectl, "AllReplicasReady"))

    def told():
        events = kubectl.get("events", "--field-selector=involvedObject.name=chat")["items"]
        ours = [each for each in events if each["involvedObject"]["kind"] == "InferenceService"]
        return sorted((each["reason"], each["type"], each["message"]) for each in ours)

    kubectl.wait_until("told", lambda: "AllReplicasReady" in [reason for reason, *_ in told()])
    ((_, kind, message),) = [each for each in told() if each[0] == "OOMKilled"]
    assert kind == "Warning"
    assert message.startswith(f"pod {name_of(pod)} was killed for memory")
    assert "OOMKilled" in kubectl("describe", "osvc", "chat").partition("Events:")[2]
