"""Others that apply the same service all the time see no difference and make none."""

import json

import pytest
from tests.operator.cluster_operator import (
    answer,
    make_ready,
    service,
    wait_for_pods,
    wait_until_told,
)

pytestmark = pytest.mark.cluster


def test_applying_the_same_again_and_again_changes_nothing(operator, kubectl):
    """As GitOps tools do, under a manager of their own."""
    make_ready(kubectl)
    before = kubectl.get("osvc", "chat")

    for _ in range(3):
        kubectl.apply(service())

    after = kubectl.get("osvc", "chat")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["status"] == before["status"]
    managed = kubectl.get("osvc", "chat", "--show-managed-fields")["metadata"]["managedFields"]
    ours = [entry for entry in managed if entry["manager"] == "octavo-operator"]
    assert [entry.get("subresource") for entry in ours] == ["status"]


def test_another_manager_that_applies_all_the_time_sees_no_difference(operator, kubectl):
    """As a GitOps controller does: server-side, every few seconds, and it looks at `diff`."""
    manifest = json.dumps(service())
    words = ("--server-side", "--field-manager=gitops", "--filename=-")
    kubectl("apply", *words, stdin=manifest)
    answer(kubectl, wait_for_pods(kubectl, 1)[0])
    wait_until_told(kubectl)
    kinds = "osvc,serviceaccounts,services,poddisruptionbudgets,networkpolicies,deployments"

    def seen():
        items = kubectl.get(kinds, "--show-managed-fields")["items"]
        ours = [item for item in items if item["metadata"]["name"] == "chat"]
        return {item["kind"]: (item["metadata"].get("generation"), _owners(item)) for item in ours}

    before = seen()
    writes = operator.num_writes()

    for _ in range(3):
        kubectl("apply", *words, stdin=manifest)
        assert kubectl("diff", *words, stdin=manifest) == ""

    assert seen() == before
    assert operator.num_writes() == writes
    assert [owner[:2] for owner in before["InferenceService"][1]] == [
        ("gitops", None),
        ("octavo-operator", "status"),
    ]


def _owners(item):
    """Who owns which fields; the cluster's own controllers write only the status of a child."""
    entries = item["metadata"]["managedFields"]
    ours = [e for e in entries if e["manager"] in ("gitops", "octavo-operator")]
    return sorted(
        (e["manager"], e.get("subresource"), json.dumps(e["fieldsV1"]), e["time"]) for e in ours
    )
