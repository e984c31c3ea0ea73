"""Others that apply the same service all the time see no difference and make none."""

import json
import time

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


EVERYTHING = {
    "model": {
        "uri": "hf://org/name@main",
        "servedName": "org/name",
        "secretRef": {"name": "hub"},
        "cache": {"newClaim": {"size": "1536Mi", "perReplica": True}},
        "refresh": "2026-01",
    },
    "engine": {
        "chatTemplate": "{{ messages }}\n",
        "kvCacheDtype": "fp8",
        "gpuMemoryUtilization": 0.9,
        "swapSpaceGiB": 1.5,
        "extraArgs": ["--log-level=debug"],
        "env": [{"name": "HF_ENDPOINT", "value": "https://mirror.example"}],
    },
    "resources": {"requests": {"cpu": "1000m", "memory": "1.5Gi"}, "limits": {"memory": "2Gi"}},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "auth": {"apiKeysSecretRef": {"name": "keys"}},
    "network": {"allowedNamespaces": ["web", "monitoring"]},
    "podTemplate": {
        "metadata": {"annotations": {"team": "search"}},
        "spec": {"containers": [{"name": "audit", "image": "registry.example/audit:1.4"}]},
    },
    "autoscaling": {"minReplicas": 1, "maxReplicas": 3, "targets": {"kvCacheUsePercent": 70}},
    "rollout": {"drainSeconds": 30},
}
"""One of each kind of field; quantities that the API server writes otherwise."""


@pytest.mark.parametrize(
    ("spec", "workload"),
    [({}, "Deployment"), (EVERYTHING, "StatefulSet")],
    ids=["least", "everything"],
)
def test_another_manager_that_applies_all_the_time_sees_no_difference(
    start_operator, kubectl, spec, workload
):
    """As a GitOps controller does: server-side, every few seconds, and it looks at `diff`."""
    operator = start_operator(samples={"intervalSeconds": 0.3})
    manifest = json.dumps(service(**spec))
    words = ("--server-side", "--field-manager=gitops", "--filename=-")
    kubectl("apply", *words, stdin=manifest)
    answer(kubectl, wait_for_pods(kubectl, 1)[0])
    wait_until_told(kubectl)
    wait_until_at_rest(kubectl, operator)
    before = seen(kubectl)
    writes = operator.num_writes()

    for _ in range(3):
        kubectl("apply", *words, stdin=manifest)
        assert kubectl("diff", *words, stdin=manifest) == ""

    assert workload in {kind for kind, _ in before}
    assert seen(kubectl) == before
    assert operator.num_writes() == writes
    (ours,) = [owners for (kind, _), (_, owners) in before.items() if kind == "InferenceService"]
    assert [owner[:2] for owner in ours] == [("gitops", None), ("octavo-operator", "status")]


def wait_until_at_rest(kubectl, operator):
    """Until nothing was written for as long as three samples take to be missed."""

    def rests():
        before = operator.num_writes()
        time.sleep(1)
        return operator.num_writes() == before

    kubectl.wait_until("at rest", rests)


def seen(kubectl):
    """Generations and owners of the service and its children."""
    kinds = (
        "osvc,serviceaccounts,services,poddisruptionbudgets,networkpolicies,deployments,"
        "statefulsets,configmaps"
    )
    items = kubectl.get(kinds, "--show-managed-fields")["items"]
    ours = [item for item in items if item["metadata"]["name"].startswith("chat")]
    return {
        (item["kind"], item["metadata"]["name"]): (
            item["metadata"].get("generation"),
            _owners(item),
        )
        for item in ours
    }


def _owners(item):
    """Who owns which fields; the cluster's own controllers write only the status of a child."""
    entries = item["metadata"]["managedFields"]
    ours = [e for e in entries if e["manager"] in ("gitops", "octavo-operator")]
    return sorted(
        (e["manager"], e.get("subresource"), json.dumps(e["fieldsV1"]), e["time"]) for e in ours
    )
