"""What becomes of the objects of a service: made, put back, left alone, removed."""

import json

import pytest
from tests.operator.cluster_operator import (
    answer,
    condition,
    has_reason,
    make_ready,
    service,
    wait_for_pods,
)

pytestmark = pytest.mark.cluster


@pytest.mark.parametrize(
    ("patch", "path", "wanted"),
    [
        ('{"spec": {"replicas": 5}}', "{.spec.replicas}", "1"),
        (
            '{"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "x"}]}}}}',
            "{.spec.template.spec.containers[0].image}",
            "localhost/octavo-engine:absent",
        ),
        (
            '{"metadata": {"labels": {"serving.octavo.dev/service": null}}}',
            r"{.metadata.labels.serving\.octavo\.dev/service}",
            "chat",
        ),
        ('{"metadata": {"ownerReferences": null}}', "{.metadata.ownerReferences[0].name}", "chat"),
    ],
    ids=["replicas", "image", "label", "owner"],
)
def test_drift_is_put_back(operator, kubectl, patch, path, wanted):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)

    kubectl("patch", "deployment", "chat", f"--patch={patch}")

    kubectl.wait_until(
        f"{path} is {wanted}",
        lambda: kubectl("get", "deployment", "chat", f"--output=jsonpath={path}") == wanted,
    )


@pytest.mark.parametrize(
    "kind",
    ["deployment", "service", "serviceaccount", "poddisruptionbudget", "networkpolicy"],
)
def test_a_removed_child_comes_back(operator, kubectl, kind):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    uid = kubectl.get(kind, "chat")["metadata"]["uid"]

    kubectl("delete", kind, "chat", "--wait=false")

    def is_new():
        found = kubectl.tried("get", kind, "chat", "--output=jsonpath={.metadata.uid}").stdout
        return found not in ("", uid)

    kubectl.wait_until(f"a new {kind}", is_new)


def test_foreign_fields_are_left_alone(operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    kubectl("label", "deployment", "chat", "team=ml")
    kubectl("annotate", "service", "chat", "note=mine")

    kubectl.apply(service(replicas=2))  # makes the operator apply the Deployment again
    wait_for_pods(kubectl, 2)

    assert kubectl.get("deployment", "chat")["metadata"]["labels"]["team"] == "ml"
    assert kubectl.get("service", "chat")["metadata"]["annotations"]["note"] == "mine"


def test_a_taken_name_is_told_and_the_object_left_alone(operator, kubectl):
    kubectl("create", "deployment", "chat", "--image=theirs")

    kubectl.apply(service())

    kubectl.wait_until("taken", has_reason(kubectl, "NameTaken", "Accepted"))
    assert "Deployment 'chat' exists" in condition(kubectl, "Accepted")["message"]
    theirs = kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["containers"]
    assert [container["image"] for container in theirs] == ["theirs"]


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deleting_leaves_nothing(operator, kubectl, cascade):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)

    kubectl("delete", "osvc", "chat", f"--cascade={cascade}", "--wait=false")

    kubectl.wait_until("nothing is left", lambda: not remains(kubectl))


def test_deleting_needs_no_operator(operator, kubectl):
    cache = {"newClaim": {"size": "1Mi"}}
    kubectl.apply(service(model={"uri": "hf://org/name", "cache": cache}))
    wait_for_pods(kubectl, 1)
    assert kubectl.get("pvc", "chat")["spec"]["accessModes"] == ["ReadWriteOnce"]
    operator.kill()

    kubectl("delete", "osvc", "chat", "--timeout=30s")

    kubectl.wait_until("nothing is left", lambda: not remains(kubectl))


def remains(kubectl):
    kinds = (
        "osvc,deployments,replicasets,services,pods,serviceaccounts,"
        "poddisruptionbudgets,networkpolicies,persistentvolumeclaims"
    )
    items = kubectl.get(kinds)["items"]
    left = [
        item
        for item in items
        if item["metadata"].get("labels", {}).get("serving.octavo.dev/service") == "chat"
        or item["kind"] == "InferenceService"
    ]
    for item in left:
        # Nobody else would end a pod without a node's kubelet.
        if item["kind"] == "Pod" and "deletionTimestamp" in item["metadata"]:
            kubectl.tried("delete", "pod", item["metadata"]["name"], "--force", "--grace-period=0")
    return left


def test_a_service_made_again_gets_children_of_its_own(operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    kubectl("delete", "osvc", "chat", "--wait=false")

    kubectl.wait_until(
        "the service is gone", lambda: kubectl.tried("get", "osvc", "chat").returncode != 0
    )
    kubectl.apply(service())

    uid = kubectl.get("osvc", "chat")["metadata"]["uid"]

    def is_owned():
        found = kubectl.tried(
            "get", "deployment", "chat", "--output=jsonpath={.metadata.ownerReferences[*].uid}"
        )
        return found.stdout == uid

    kubectl.wait_until("a Deployment of the new service", is_owned)


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


def test_children_of_a_predecessor_are_waited_for(operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    hold = '--patch={"metadata": {"finalizers": ["octavo.test/hold"]}}'
    kubectl("patch", "serviceaccount", "chat", hold)
    kubectl("delete", "osvc", "chat", "--cascade=background", "--timeout=30s")
    try:
        kubectl.apply(service())
        kubectl.wait_until("told", has_reason(kubectl, "PredecessorTerminating"))
        assert "ServiceAccount chat" in condition(kubectl)["message"]
    finally:
        kubectl("patch", "serviceaccount", "chat", '--patch={"metadata": {"finalizers": null}}')
    wait_for_pods(kubectl, 1)


def test_another_manager_that_applies_all_the_time_sees_no_difference(operator, kubectl):
    """As a GitOps controller does: server-side, every few seconds, and it looks at `diff`."""
    manifest = json.dumps(service())
    words = ("--server-side", "--field-manager=gitops", "--filename=-")
    kubectl("apply", *words, stdin=manifest)
    answer(kubectl, wait_for_pods(kubectl, 1)[0])
    kubectl("wait", "--for=condition=Ready", "osvc/chat", "--timeout=30s")
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
