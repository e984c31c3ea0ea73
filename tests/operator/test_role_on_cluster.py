"""The chart's Role against the calls that the operator makes."""

import pytest
from tests.operator.cluster_operator import (
    answer,
    has_reason,
    make_ready,
    pods,
    roles,
    set_status,
    wait_for_pods,
)

from octavo_operator.kinds import WATCHED_KINDS

pytestmark = pytest.mark.cluster


def test_the_role_is_what_is_used_and_no_more(operator, kubectl, api_server):
    make_ready(kubectl)
    kubectl("delete", "service", "chat")
    kubectl.wait_until("back", lambda: kubectl.tried("get", "service", "chat").returncode == 0)
    flap(kubectl)
    let_a_pod_wait_for_its_volumes(kubectl)

    calls = "octavo_operator_api_calls_total"
    for resource, verb in (("leases", "PUT"), ("events", "LIST"), ("events", "PATCH")):
        call = (("code", "200"), ("resource", resource), ("verb", verb))
        kubectl.wait_until(str(call), lambda call=call: call in operator.samples(calls))

    used = {(kind.plural, "watch") for kind in WATCHED_KINDS}
    for labels in operator.samples(calls):
        call = dict(labels)
        used |= {(call["resource"], verb) for verb in VERBS[call["verb"]]}
    # A status is patched, never the service; and the right to set blockOwnerDeletion is no call.
    used.remove(("inferenceservices", "patch"))
    used.remove(("inferenceservices", "create"))
    used |= {("inferenceservices/status", "patch"), ("inferenceservices/finalizers", "update")}

    granted = {
        (resource, verb)
        for role in roles(api_server, kubectl.namespace)
        for rule in role.get("rules", [])
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert used == granted


def flap(kubectl):
    """Says again by an Event what was said shortly before."""
    (pod,) = pods(kubectl)
    answer(kubectl, pod, is_ready=False)
    kubectl.wait_until("lost", has_reason(kubectl, "MinimumReplicasUnavailable"))
    answer(kubectl, pod)
    kubectl.wait_until("back", has_reason(kubectl, "AllReplicasReady"))


def let_a_pod_wait_for_its_volumes(kubectl):
    kubectl("scale", "osvc/chat", "--replicas=2")
    for pod in wait_for_pods(kubectl, 2):
        if not any(c["type"] == "Ready" for c in pod["status"]["conditions"]):
            conditions = [
                {"type": "PodScheduled", "status": "True"},
                {"type": "PodReadyToStartContainers", "status": "False"},
            ]
            set_status(kubectl, pod, {"conditions": conditions})


VERBS = {
    "GET": ["get"],
    "LIST": ["list"],
    "PATCH": ["patch", "create"],
    "POST": ["create"],
    "PUT": ["update"],
}
"""Method -> verbs; a server-side apply asks for both, since it may create."""
