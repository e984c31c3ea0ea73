"""PodMonitors: made where their kind is served, and no trouble where it comes or goes."""

import json
from contextlib import contextmanager

import pytest
from tests.operator import pod_monitor_kind
from tests.operator.cluster_operator import condition, make_ready, pods, service

pytestmark = pytest.mark.cluster

MONITORS = {"labels": {"release": "prometheus"}}


CLAIM = {"size": "1.5Gi", "perReplica": True}
ALL_CHILDREN = {
    "model": {"uri": "hf://org/name", "cache": {"newClaim": CLAIM}},
    "engine": {"chatTemplate": "{{ messages }}\n", "kvCacheDtype": "fp8"},
}
"""A ConfigMap, and a StatefulSet whose claims the API server fills in."""


def monitor(kubectl, name="chat"):
    found = kubectl.tried("get", "podmonitor", name, "--output=json")
    return json.loads(found.stdout) if found.returncode == 0 else None


def test_a_service_gets_one_that_drift_cannot_change(start_operator, pod_monitors_served, kubectl):
    start_operator(podMonitors=MONITORS)
    make_ready(kubectl)
    kubectl.wait_until("a PodMonitor", lambda: monitor(kubectl) is not None)
    made = monitor(kubectl)
    assert made["metadata"]["labels"]["release"] == "prometheus"
    assert made["metadata"]["ownerReferences"][0]["kind"] == "InferenceService"
    (pod,) = pods(kubectl)
    chosen = made["spec"]["selector"]["matchLabels"].items()
    assert chosen <= pod["metadata"]["labels"].items()

    ours = made["spec"]["podMetricsEndpoints"]
    drift = {"spec": {"podMetricsEndpoints": [{"port": "other"}]}}
    kubectl("patch", "podmonitor", "chat", "--type=merge", f"--patch={json.dumps(drift)}")
    kubectl.wait_until(
        "it is as it was", lambda: monitor(kubectl)["spec"]["podMetricsEndpoints"] == ours
    )


def test_the_kind_may_come_and_go_while_services_run(start_operator, pod_monitors_served, kubectl):
    pod_monitors_served.remove()
    operator = start_operator(resyncSeconds=2)
    make_ready(kubectl)
    kubectl.apply(service("kept", **ALL_CHILDREN))

    pod_monitors_served.install()
    kubectl.wait_until("PodMonitors", lambda: monitor(kubectl) and monitor(kubectl, "kept"))
    assert_it_comes_to_rest(kubectl, operator)

    pod_monitors_served.remove()
    kubectl.wait_until("noticed", lambda: _served(operator) == [["PodMonitor"], []])
    degraded = condition(kubectl, "Degraded")
    assert degraded["reason"] != "ApplyRejected", degraded
    assert condition(kubectl, "Accepted")["status"] == "True"
    kubectl("scale", "osvc/chat", "--replicas=2")
    kubectl.wait_until("its watches go on", lambda: len(pods(kubectl)) == 2)
    reasons = {event["reason"] for event in kubectl.get("events")["items"]}
    assert "ApplyRejected" not in reasons


def test_a_kind_that_is_going_is_no_fault_of_a_service(
    start_operator, pod_monitors_served, kubectl
):
    start_operator(resyncSeconds=2)
    make_ready(kubectl)
    kubectl.wait_until("a PodMonitor", lambda: monitor(kubectl) is not None)
    with a_kind_that_cannot_go(kubectl):
        kubectl("delete", "crd", pod_monitor_kind.NAME, "--wait=false")
        kubectl.apply(service("late"))
        kubectl.wait_until("its pod", lambda: pods(kubectl, "late"))
        kubectl.wait_until("its status", lambda: condition(kubectl, "Accepted", "late"))

    pod_monitors_served.remove()
    reasons = {event["reason"] for event in kubectl.get("events")["items"]}
    assert "ApplyRejected" not in reasons


@contextmanager
def a_kind_that_cannot_go(kubectl):
    """Since one of its objects stays."""

    def hold(finalizers):
        patch = {"metadata": {"finalizers": finalizers}}
        kubectl("patch", "podmonitor", "chat", "--type=merge", f"--patch={json.dumps(patch)}")

    hold(["example.org/held"])
    try:
        yield
    finally:
        hold([])


def assert_it_comes_to_rest(kubectl, operator):
    """Nothing that the API server makes of the children looks like drift at the next listings."""
    kubectl("get", "statefulset", "kept")
    assert kubectl.get("configmaps", "--selector=serving.octavo.dev/service=kept")["items"]
    listed = operator.num_resyncs()
    kubectl.wait_until("listed twice more", lambda: operator.num_resyncs() >= listed + 3)
    applied = [line for line in operator.log() if line["event"] == "applied"]
    # A budget changes with the start of a replica that it protects.
    others = [line for line in applied if line["kind"] != "PodDisruptionBudget"]
    assert {line["cause"] for line in others} == {"missing"}, others
    assert "drifted" not in {line["cause"] for line in applied}, applied


def _served(operator):
    return [line["served"] for line in operator.log() if line["event"] == "optional kinds"]
