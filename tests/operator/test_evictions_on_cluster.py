"""Which pods may be evicted, as by a drain, and which the operator evicts itself."""

import json

import pytest
from tests.operator.cluster_operator import (
    answer,
    engine_container,
    fault,
    has_reason,
    name_of,
    pods,
    service,
    set_status,
    wait_for_pods,
)

pytestmark = pytest.mark.cluster


def evict(kubectl, pod):
    """What kubectl says about it; nothing where the pod goes."""
    name = name_of(pod)
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}/eviction"
    words = ("create", f"--raw={path}", "--filename=-")
    return kubectl.tried(*words, stdin=json.dumps(eviction)).stderr


def load(kubectl, pod):
    """As a kubelet tells of a container that runs and does not answer yet."""
    set_status(kubectl, pod, {"phase": "Running", "containerStatuses": [running(pod)]})


def running(pod):
    began = pod["metadata"]["creationTimestamp"]
    return engine_container(pod, started=False, state={"running": {"startedAt": began}})


def wait_for_budget(kubectl, max_unavailable):
    """Until the operator has set it, and the budget's own controller has seen that."""

    def holds():
        budget = kubectl.get("pdb", "chat")
        is_seen = budget.get("status", {}).get("observedGeneration")
        is_new = is_seen == budget["metadata"]["generation"]
        return is_new and budget["spec"]["maxUnavailable"] == max_unavailable

    kubectl.wait_until(f"maxUnavailable {max_unavailable}", holds)


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_replica_that_loads_is_not_evicted(shared_operator, kubectl, replicas):
    """As long as the service lacks it: also beside one that answers already."""
    kubectl.apply(service(replicas=replicas))
    loading, *others = wait_for_pods(kubectl, replicas)
    for pod in others:
        answer(kubectl, pod)
    load(kubectl, loading)
    wait_for_budget(kubectl, 0)

    assert "violate the pod's disruption budget" in evict(kubectl, loading)

    answer(kubectl, loading)
    wait_for_budget(kubectl, 1)
    kubectl.wait_until("it may go", lambda: evict(kubectl, loading) == "")


def test_a_replica_that_crashed_holds_up_no_drain(shared_operator, kubectl):
    kubectl.apply(service())
    (pod,) = wait_for_pods(kubectl, 1)
    load(kubectl, pod)
    wait_for_budget(kubectl, 0)

    ended = {"exitCode": 2, "containerID": "containerd://x"}
    crashed = {**running(pod), "restartCount": 1, "lastState": {"terminated": ended}}
    set_status(kubectl, pod, {"containerStatuses": [crashed]})

    wait_for_budget(kubectl, 1)
    assert evict(kubectl, pod) == ""


def test_a_pod_that_keeps_a_broken_accelerator_is_replaced(shared_operator, kubectl):
    """Also while another replica loads."""
    kubectl.apply(service(replicas=2))
    pod, loading = wait_for_pods(kubectl, 2)
    load(kubectl, loading)
    wait_for_budget(kubectl, 0)

    fault(kubectl, pod)

    kubectl.wait_until("told", lambda: "PodEvicted" in reasons(kubectl))
    kubectl.wait_until("it goes", lambda: name_of(pod) not in map(name_of, pods(kubectl)))
    for one in wait_for_pods(kubectl, 2):
        answer(kubectl, one)
    kubectl.wait_until("all serve", has_reason(kubectl, "AllReplicasReady"))


def reasons(kubectl):
    items = kubectl.get("events", "--field-selector=involvedObject.name=chat")["items"]
    return [event["reason"] for event in items]
