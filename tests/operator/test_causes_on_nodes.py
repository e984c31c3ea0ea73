"""Reasons as a real scheduler, kubelet and admission bring them about."""

import pytest
from tests.operator.cluster_operator import condition, pods, service

pytestmark = pytest.mark.cluster

CPU = {"accelerator": {"resourceName": "none"}}


@pytest.fixture
def kubectl_with_operator(cluster, shared_operator, kubectl):
    """`cluster` asks for nodes: these tests are about what happens on them."""
    return kubectl


def told(kubectl, reason):
    kubectl.wait_until(reason, lambda: condition(kubectl).get("reason") == reason, timeout_s=60)
    assert condition(kubectl, "Degraded")["reason"] == reason
    assert condition(kubectl, "Available")["status"] == "False"
    return condition(kubectl)["message"]


def anywhere(**spec):
    return service(**{**spec, "nodeSelector": {}})


def test_an_image_that_is_not_there(kubectl_with_operator):
    kubectl = kubectl_with_operator
    # The kubelet mounts before it looks for images, so the folder has to be there.
    model = {"uri": "file:///usr"}
    kubectl.apply(anywhere(**CPU, model=model, image="localhost/nobody/has:this"))

    message = told(kubectl, "ImagePull")
    pod = pods(kubectl)[0]["metadata"]["name"]
    assert message == f"pod {pod} cannot get image localhost/nobody/has:this: ErrImageNeverPull"


@pytest.mark.parametrize(
    ("path", "what"), [("/nobody/has/this", "directory"), ("/nobody/has/this.gguf", "file")]
)
def test_a_model_that_is_not_on_the_node(kubectl_with_operator, path, what):
    kubectl = kubectl_with_operator
    kubectl.apply(anywhere(**CPU, model={"uri": f"file://{path}"}))

    message = told(kubectl, "ModelNotFound")
    pod = pods(kubectl)[0]["metadata"]["name"]
    assert message == f"pod {pod} finds no model on its node: {path} is not a {what}"
    model_ready = condition(kubectl, "ModelReady")
    assert (model_ready["status"], model_ready["message"]) == ("False", message)


def test_more_accelerators_than_any_node_has(kubectl_with_operator):
    kubectl = kubectl_with_operator
    kubectl.apply(anywhere(engine={"tensorParallelSize": 8}))

    assert "Insufficient nvidia.com/gpu" in told(kubectl, "Unschedulable")


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        ({"uri": "pvc://models/chat"}, 'persistentvolumeclaim "models" not found'),
        (
            {
                "uri": "hf://org/name",
                "cache": {"newClaim": {"size": "1Gi", "storageClassName": "absent"}},
            },
            "unbound immediate PersistentVolumeClaims",
        ),
    ],
    ids=["absent", "of a class that is not there"],
)
def test_a_claim_that_nobody_fills(kubectl_with_operator, model, sentence):
    kubectl = kubectl_with_operator
    kubectl.apply(anywhere(**CPU, model=model))

    assert sentence in told(kubectl, "Unschedulable")


def test_a_namespace_whose_policy_forbids_node_paths(kubectl_with_operator):
    kubectl = kubectl_with_operator
    label = "pod-security.kubernetes.io/enforce=restricted"
    kubectl("label", "namespace", kubectl.namespace, label)
    kubectl.apply(anywhere(**CPU))

    message = told(kubectl, "PodCreationFailed")
    assert 'violates PodSecurity "restricted:latest"' in message
    assert "hostPath" in message


def test_a_claim_passes_the_strictest_policy(kubectl_with_operator):
    """All else in our pods is within the restricted standard."""
    kubectl = kubectl_with_operator
    label = "pod-security.kubernetes.io/enforce=restricted"
    kubectl("label", "namespace", kubectl.namespace, label)
    kubectl.apply(anywhere(**CPU, model={"uri": "pvc://models/chat"}))

    assert 'persistentvolumeclaim "models" not found' in told(kubectl, "Unschedulable")
