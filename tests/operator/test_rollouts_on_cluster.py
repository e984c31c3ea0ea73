"""From a spec to pods that answer, and from one number or generation of them to the next."""

import pytest
from tests.operator.cluster_operator import (
    answer,
    condition,
    has_reason,
    make_ready,
    name_of,
    pods,
    service,
    wait_for_pods,
)

pytestmark = pytest.mark.cluster


def test_a_service_becomes_ready_and_tells_where(shared_operator, kubectl):
    make_ready(kubectl)

    status = kubectl.get("osvc", "chat")["status"]
    assert status["url"] == f"http://chat.{kubectl.namespace}.svc/v1"
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    columns = kubectl("get", "osvc", "chat", "--no-headers").split()
    assert columns[:6] == ["chat", "True", "AllReplicasReady", "1", "1", "chat"]


def test_a_change_of_the_spec_rolls_out_before_the_old_replica_goes(shared_operator, kubectl):
    make_ready(kubectl)
    (old,) = pods(kubectl)

    kubectl.apply(service(engine={"maxModelLen": 1024}))

    new = next(pod for pod in wait_for_pods(kubectl, 2) if pod["metadata"]["name"] != name_of(old))
    assert "--max-model-len=1024" in new["spec"]["containers"][0]["args"]
    kubectl.wait_until("rolling out", has_reason(kubectl, "RollingOut"))
    assert condition(kubectl, "Available")["status"] == "True"

    answer(kubectl, new)

    kubectl.wait_until("the rollout is over", has_reason(kubectl, "AllReplicasReady"))
    assert [name_of(pod) for pod in pods(kubectl)] == [name_of(new)]


def test_scaling_touches_no_pod_that_runs(shared_operator, kubectl):
    make_ready(kubectl)
    (before,) = pods(kubectl)

    kubectl("scale", "osvc/chat", "--replicas=3")

    after = wait_for_pods(kubectl, 3)
    assert name_of(before) in [name_of(pod) for pod in after]
    assert len(kubectl.get("replicasets")["items"]) == 1
    selector = kubectl.get("osvc", "chat", "--subresource=scale")["status"]["selector"]
    assert selector == "serving.octavo.dev/service=chat"


def test_scaling_to_zero_is_told(shared_operator, kubectl):
    make_ready(kubectl)

    kubectl("scale", "osvc/chat", "--replicas=0")

    kubectl.wait_until("scaled to zero", has_reason(kubectl, "ScaledToZero"))
    assert condition(kubectl, "Degraded")["status"] == "False"
