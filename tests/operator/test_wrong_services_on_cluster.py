"""Wrong InferenceServices are refused at `kubectl apply`, by sentences with field and rule."""

import json

import pytest
from tests.operator.wrong_services import RIGHT, refusal, refusals

pytestmark = pytest.mark.cluster

WRONG = {
    "unknown field": ({"model_": 1}, 'unknown field "spec.model_"'),
    "wrong type": ({"replicas": "two"}, 'spec.replicas in body must be of type integer: "string"'),
    "image": ({"image": "my image"}, "image must be an image reference"),
    "accelerator": (
        {"accelerator": {"resourceName": "gpu"}},
        "resourceName must be none or an extended resource such as nvidia.com/gpu",
    ),
    "accelerator counted twice": (
        {"resources": {"limits": {"nvidia.com/gpu": 1}}},
        "resources must not list the accelerator; its count follows engine.tensorParallelSize",
    ),
    "no quantity": (
        {"resources": {"limits": {"memory": "lots"}}},
        'spec.resources.limits.memory: Invalid value: "lots"',
    ),
    "requests above limits": (
        {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1024Mi"}}},
        "requests must not be above limits",
    ),
    "toleration with a value": (
        {"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]},
        "value must be absent where operator is Exists",
    ),
    "toleration without key": (
        {"tolerations": [{"value": "v"}]},
        "key must be set unless operator is Exists",
    ),
    "toleration seconds": (
        {"tolerations": [{"key": "k", "effect": "NoSchedule", "tolerationSeconds": 5}]},
        "tolerationSeconds needs effect NoExecute",
    ),
    "negative replicas": ({"replicas": -1}, "replicas must be between 0 and 512"),
    "too many replicas": ({"replicas": 513}, "replicas must be between 0 and 512"),
    "auth without a Secret": ({"auth": {}}, "spec.auth.apiKeysSecretRef: Required value"),
    "auth by a wrong name": (
        {"auth": {"apiKeysSecretRef": {"name": "A_B"}}},
        "name must be the name of a Secret of this namespace",
    ),
    "auth by a wrong entry": (
        {"auth": {"apiKeysSecretRef": {"name": "a", "key": "a/b"}}},
        "key must be the name of an entry of a Secret",
    ),
    "open and yet closed": (
        {"network": {"isolated": False, "allowedNamespaces": ["a"]}},
        "allowedNamespaces has no meaning where isolated is false",
    ),
    "no namespace": (
        {"network": {"allowedNamespaces": ["a", "*"]}},
        "allowedNamespaces must each be the name of a namespace",
    ),
    "surge without surge": (
        {"rollout": {"strategy": "recreate", "maxSurge": 1}},
        "maxSurge has no meaning where strategy is recreate",
    ),
    "no surge": ({"rollout": {"maxSurge": 0}}, "maxSurge must be between 1 and 512"),
    "rollout strategy": ({"rollout": {"strategy": "x"}}, 'supported values: "auto", "surge"'),
    "product on the CPU": (
        {"accelerator": {"resourceName": "none", "product": "H200"}},
        "accelerator.product has no meaning where accelerator.resourceName is none",
    ),
    "memory without fetching": (
        {"accelerator": {"memoryGiB": 80}},
        "accelerator.memoryGiB has no meaning without an accelerator, or with file://, pvc://",
    ),
    "no memory": (
        {"model": {"uri": "hf://a/b"}, "accelerator": {"memoryGiB": 0}},
        "memoryGiB must be above 0 and at most 4096",
    ),
    "product": (
        {"accelerator": {"product": "NVIDIA H200"}},
        "product must be the value of a node's label, such as NVIDIA-H200",
    ),
    "product label": (
        {"accelerator": {"product": "H200", "productLabel": "a b"}},
        "productLabel must be the name of a label, such as nvidia.com/gpu.product",
    ),
    "product twice": (
        {"accelerator": {"product": "a"}, "nodeSelector": {"nvidia.com/gpu.product": "b"}},
        "nodeSelector must not hold accelerator.productLabel where accelerator.product is set",
    ),
    "priority class": (
        {"priorityClassName": "High!"},
        "priorityClassName must be the name of a PriorityClass",
    ),
    "a label of ours": (
        {"podTemplate": {"metadata": {"labels": {"serving.octavo.dev/service": "x"}}}},
        "labels must not begin with serving.octavo.dev/ or app.kubernetes.io/",
    ),
    "unknown part of affinity": (
        {"affinity": {"gpuAffinity": {}}},
        'unknown field "spec.affinity.gpuAffinity"',
    ),
    "progress deadline": (
        {"rollout": {"progressDeadlineSeconds": 5}},
        "progressDeadlineSeconds must be between 10 and 86400",
    ),
    "drain": ({"rollout": {"drainSeconds": -5}}, "drainSeconds must be between 0 and 86400"),
}
WRONG_NAMES = {
    "name too long": "a" * 53,
    "name with a dot": "a.b",
    "name with a digit in front": "1a",
}


@pytest.fixture(scope="module")
def refused(kubectl_shared, tmp_path_factory):
    return refusals(kubectl_shared, tmp_path_factory.mktemp("wrong"), WRONG)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_is_refused(refused, case):
    _, sentence = WRONG[case]

    assert sentence in refused.get(case, "it was accepted")


@pytest.mark.parametrize("case", WRONG_NAMES)
def test_a_name_that_no_service_can_bear_is_refused(kubectl_shared, case):
    body = {**RIGHT, "metadata": {"name": WRONG_NAMES[case]}}

    assert "metadata.name must be a DNS label of at most 52 characters" in refusal(
        kubectl_shared, body
    )


def test_the_right_one_is_accepted(kubectl_shared):
    kubectl_shared("apply", "--dry-run=server", "--filename=-", stdin=json.dumps(RIGHT))


def test_scaling_is_checked_by_the_same_rule(kubectl):
    kubectl.apply(RIGHT)

    result = kubectl.tried("scale", "osvc/chat", "--replicas=1000")
    assert result.returncode != 0
    assert "replicas must be between 0 and 512" in result.stderr


def test_every_example_is_accepted(kubectl_shared, examples):
    for name, body in examples.items():
        result = kubectl_shared.tried(
            "apply", "--dry-run=server", "--filename=-", stdin=json.dumps(body)
        )
        assert result.returncode == 0, f"{name}: {result.stderr}"


def test_the_fields_explain_themselves(kubectl_shared):
    said = kubectl_shared("explain", "osvc.spec.engine.tensorParallelSize")

    assert "Accelerators over which one replica is split" in said
