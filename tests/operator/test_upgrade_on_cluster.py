"""From the release before this one to this checkout, with a service that runs: no pod is touched.

previous/ holds the CRD of then, a service, and what the operator of then applied for it.
"""

import json
from pathlib import Path

import pytest
import yaml
from tests.operator.cluster_operator import REPOSITORY, answer, has_reason, pods, wait_for_pods

pytestmark = pytest.mark.cluster

PREVIOUS = Path(__file__).parent / "previous"
ENGINE = {"image": "octavo-engine:1", "imagePullPolicy": "IfNotPresent"}
"""With which previous/children.yaml was made."""


def install_crd(kubectl, path):
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={path}")


@pytest.fixture
def previous_crd(kubectl):
    install_crd(kubectl, PREVIOUS / "crd.yaml")
    yield
    install_crd(kubectl, REPOSITORY / "crds" / "inferenceservices.yaml")


def manifests(file):
    """With the name that the helpers of these tests take for granted."""
    text = (PREVIOUS / file).read_text(encoding="utf-8")
    return list(yaml.safe_load_all(text.replace("smollm2-cpu", "chat")))


@pytest.fixture
def running(previous_crd, kubectl):
    """The pods of a service that the operator of then has made Ready."""
    kubectl.apply(*manifests("service.yaml"))
    uid = kubectl.get("osvc", "chat")["metadata"]["uid"]
    for child in manifests("children.yaml"):
        child["metadata"]["namespace"] = kubectl.namespace
        child["metadata"]["ownerReferences"][0]["uid"] = uid
        manager = ("--server-side", "--field-manager=octavo-operator")
        kubectl("apply", *manager, "--filename=-", stdin=json.dumps(child))
    return make_ready(kubectl)


def make_ready(kubectl):
    for pod in wait_for_pods(kubectl, 2):
        answer(kubectl, pod)
    return identities(kubectl)


def identities(kubectl):
    return sorted(pod["metadata"]["uid"] for pod in pods(kubectl))


def test_an_upgrade_restarts_no_pod(start_operator, kubectl, running):
    template = kubectl.get("deployment", "chat")["spec"]["template"]
    install_crd(kubectl, REPOSITORY / "crds" / "inferenceservices.yaml")
    operator = start_operator(engine=ENGINE)

    kubectl.wait_until("told", has_reason(kubectl, "AllReplicasReady"))
    kubectl.wait_until("guarded", lambda: kubectl.tried("get", "pdb", "chat").returncode == 0)
    kubectl.wait_until("at rest", lambda: operator.samples("octavo_operator_queue_length")[()] == 0)

    assert identities(kubectl) == running
    assert len(kubectl.get("replicasets")["items"]) == 1
    assert kubectl.get("deployment", "chat")["spec"]["template"] == template
    assert kubectl.get("osvc", "chat")["status"]["readyReplicas"] == 2


def test_a_new_image_rolls_after_an_upgrade(start_operator, kubectl, running):
    """The test above can fail: what the operator wants of the template does reach the pods."""
    install_crd(kubectl, REPOSITORY / "crds" / "inferenceservices.yaml")
    start_operator(engine={**ENGINE, "image": "octavo-engine:2"})

    kubectl.wait_until("a second ReplicaSet", lambda: len(kubectl.get("replicasets")["items"]) == 2)
    assert set(running) <= set(identities(kubectl)), "the old ones serve until the new one answers"
