"""PodMonitors: made where their kind is served, and no trouble where it comes or goes."""

import json

import pytest
from tests.operator.cluster_operator import condition, make_ready, pods

pytestmark = pytest.mark.cluster

MONITORS = {"labels": {"release": "prometheus"}}


def monitor(kubectl):
    found = kubectl.tried("get", "podmonitor", "chat", "--output=json")
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

    kubectl("delete", "podmonitor", "chat")
    kubectl.wait_until("it is back", lambda: monitor(kubectl) is not None)


def test_the_kind_may_come_and_go_while_services_run(start_operator, pod_monitors_served, kubectl):
    pod_monitors_served.remove()
    operator = start_operator(resyncSeconds=2)
    make_ready(kubectl)

    pod_monitors_served.install()
    kubectl.wait_until("a PodMonitor", lambda: monitor(kubectl) is not None)

    pod_monitors_served.remove()
    kubectl.wait_until("noticed", lambda: _served(operator) == [["PodMonitor"], []])
    assert condition(kubectl, "Degraded")["status"] == "False"
    assert condition(kubectl, "Accepted")["status"] == "True"
    kubectl("scale", "osvc/chat", "--replicas=2")
    kubectl.wait_until("its watches go on", lambda: len(pods(kubectl)) == 2)
    reasons = {event["reason"] for event in kubectl.get("events")["items"]}
    assert "ApplyRejected" not in reasons


def _served(operator):
    return [line["served"] for line in operator.log() if line["event"] == "optional kinds"]
