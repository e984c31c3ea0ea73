"""What becomes of the objects of a service: made, put back, left alone, removed."""

import pytest
from tests.operator.cluster_operator import (
    condition,
    has_reason,
    remains,
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
def test_drift_is_put_back(shared_operator, kubectl, patch, path, wanted):
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
def test_a_removed_child_comes_back(shared_operator, kubectl, kind):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    uid = kubectl.get(kind, "chat")["metadata"]["uid"]

    kubectl("delete", kind, "chat", "--wait=false")

    def is_new():
        found = kubectl.tried("get", kind, "chat", "--output=jsonpath={.metadata.uid}").stdout
        return found not in ("", uid)

    kubectl.wait_until(f"a new {kind}", is_new)


def test_foreign_fields_are_left_alone(shared_operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    kubectl("label", "deployment", "chat", "team=ml")
    kubectl("annotate", "service", "chat", "note=mine")

    kubectl.apply(service(replicas=2))  # makes the operator apply the Deployment again
    wait_for_pods(kubectl, 2)

    assert kubectl.get("deployment", "chat")["metadata"]["labels"]["team"] == "ml"
    assert kubectl.get("service", "chat")["metadata"]["annotations"]["note"] == "mine"


def test_a_taken_name_is_told_and_the_object_left_alone(shared_operator, kubectl):
    kubectl("create", "deployment", "chat", "--image=theirs")

    kubectl.apply(service())

    kubectl.wait_until("taken", has_reason(kubectl, "NameTaken", "Accepted"))
    assert "Deployment 'chat' exists" in condition(kubectl, "Accepted")["message"]
    theirs = kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["containers"]
    assert [container["image"] for container in theirs] == ["theirs"]


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deleting_leaves_nothing(shared_operator, kubectl, cascade):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)

    kubectl("delete", "osvc", "chat", f"--cascade={cascade}", "--wait=false")

    kubectl.wait_until("nothing is left", lambda: not remains(kubectl))


def test_a_service_made_again_gets_children_of_its_own(shared_operator, kubectl):
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


def test_children_of_a_predecessor_are_waited_for(shared_operator, kubectl):
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
