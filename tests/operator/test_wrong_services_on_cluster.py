"""Wrong InferenceServices are refused at `kubectl apply`, by sentences with field and rule."""

import json

import pytest

pytestmark = pytest.mark.cluster

RIGHT = {
    "apiVersion": "serving.octavo.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "chat"},
    "spec": {"model": {"uri": "file:///models/chat"}},
}
CPU = {"accelerator": {"resourceName": "none"}}

WRONG_SPECS = {
    "no model": (
        {"model": None, "replicas": 1},
        "spec.model: Required value",
    ),
    "no uri": ({"model": {"uri": None}}, "spec.model.uri: Required value"),
    "unknown field": ({"model_": 1}, 'unknown field "spec.model_"'),
    "unknown engine field": (
        {"engine": {"tensorParalelSize": 2}},
        'unknown field "spec.engine.tensorParalelSize"',
    ),
    "wrong type": ({"replicas": "two"}, 'spec.replicas in body must be of type integer: "string"'),
    "unknown scheme": (
        {"model": {"uri": "ftp://org/name"}},
        "uri must begin with hf://, modelscope://, s3://, gs://, https://, oci://, pvc:// or file",
    ),
    "relative path": (
        {"model": {"uri": "file://models/a"}},
        "uri with file:// must hold an absolute path on the node other than /",
    ),
    "whole node": (
        {"model": {"uri": "file:///"}},
        "uri with file:// must hold an absolute path on the node other than /",
    ),
    "path that climbs": (
        {"model": {"uri": "file:///models/../etc"}},
        "uri must hold no '..' segment and no white space",
    ),
    "path with a blank": (
        {"model": {"uri": "file:///models/a b"}},
        "uri must hold no '..' segment and no white space",
    ),
    "claim that is none": (
        {"model": {"uri": "pvc://Models/a"}},
        "uri with pvc:// must name a claim of this namespace, as in pvc://claim/path",
    ),
    "served name": (
        {"model": {"servedName": "-x y"}},
        "servedName must begin with a letter or digit",
    ),
    "no ranks": (
        {"engine": {"tensorParallelSize": 0}},
        "tensorParallelSize must be between 1 and 16, since a replica lives on one node",
    ),
    "too many ranks": (
        {"engine": {"tensorParallelSize": 32}},
        "tensorParallelSize must be between 1 and 16, since a replica lives on one node",
    ),
    "quantization": (
        {"engine": {"quantization": "int3"}},
        'spec.engine.quantization: Unsupported value: "int3": supported values: "auto", "none"',
    ),
    "dtype": (
        {"engine": {"dtype": "fp64"}},
        'spec.engine.dtype: Unsupported value: "fp64": supported values: "auto", "float32"',
    ),
    "context": ({"engine": {"maxModelLen": 0}}, "maxModelLen must be at least 16 tokens"),
    "sequences": ({"engine": {"maxNumSeqs": 0}}, "maxNumSeqs must be between 1 and 4096"),
    "budget": ({"engine": {"maxNumBatchedTokens": 1}}, "maxNumBatchedTokens must be at least 16"),
    "budget below sequences": (
        {"engine": {"maxNumBatchedTokens": 64, "maxNumSeqs": 128}},
        "maxNumBatchedTokens must be at least maxNumSeqs, since each running sequence takes one "
        "token of every step",
    ),
    "memory share": (
        {"engine": {"gpuMemoryUtilization": 1.5}},
        "gpuMemoryUtilization must be above 0 and at most 1",
    ),
    "page size": (
        {"engine": {"blockSize": 48}},
        "blockSize must be a power of two from 16 to 1024",
    ),
    "swap": ({"engine": {"swapSpaceGiB": -1}}, "swapSpaceGiB must be between 0 and 4096"),
    "latency": (
        {"engine": {"targetItlMs": 0}},
        "targetItlMs must be between 1 and 60000 milliseconds",
    ),
    "no option": (
        {"engine": {"extraArgs": ["max-body-mib=1"]}},
        "extraArgs must each be one --option or --option=value",
    ),
    "option of a field": (
        {"engine": {"extraArgs": ["--max-model-len=9"]}},
        "extraArgs must not set what a field of spec or the operator sets",
    ),
    "variable name": (
        {"engine": {"env": [{"name": "1A", "value": "x"}]}},
        "name must be an environment variable's name",
    ),
    "device variable": (
        {"engine": {"env": [{"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]}},
        "name must not be CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES",
    ),
    "variable twice": (
        {"engine": {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]}},
        'spec.engine.env[1]: Duplicate value: {"name":"A"}',
    ),
    "variable without value": (
        {"engine": {"env": [{"name": "A"}]}},
        "spec.engine.env[0].value: Required value",
    ),
    "image": ({"image": "my image"}, "image must be an image reference"),
    "accelerator": (
        {"accelerator": {"resourceName": "gpu"}},
        "resourceName must be none or an extended resource such as nvidia.com/gpu",
    ),
    "ranks without accelerator": (
        {**CPU, "engine": {"tensorParallelSize": 2}},
        "engine.tensorParallelSize must be 1 where accelerator.resourceName is none",
    ),
    "GPU memory without GPU": (
        {**CPU, "engine": {"gpuMemoryUtilization": 0.5}},
        "engine.gpuMemoryUtilization has no meaning where accelerator.resourceName is none",
    ),
    "swap without GPU": (
        {**CPU, "engine": {"swapSpaceGiB": 1}},
        "engine.swapSpaceGiB has no meaning where accelerator.resourceName is none",
    ),
    "CPU pages with GPU": (
        {"engine": {"cpuKvCacheGiB": 1}},
        "engine.cpuKvCacheGiB applies only where accelerator.resourceName is none",
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
    "a hub's model without its owner": (
        {"model": {"uri": "hf://name"}},
        "uri with hf:// or modelscope:// must be org/name, org/name@revision",
    ),
    "a hub's folder": (
        {"model": {"uri": "modelscope://org/name/folder"}},
        "uri with hf:// or modelscope:// must be org/name, org/name@revision",
    ),
    "bucket": (
        {"model": {"uri": "s3://Bucket/a"}},
        "uri with s3:// or gs:// must name a bucket and a path in it",
    ),
    "a user in an address": (
        {"model": {"uri": "https://user:key@host/a"}},
        "uri with https:// must hold host and path, without user, query or fragment",
    ),
    "no image": ({"model": {"uri": "oci:///a"}}, "uri with oci:// must name an image"),
    "cache without fetching": (
        {"model": {"uri": "pvc://a/b", "cache": {"emptyDir": {}}}},
        "cache has no meaning with file://, pvc:// and oci://",
    ),
    "refresh without fetching": (
        {"model": {"uri": "file:///a", "refresh": "1"}},
        "refresh has no meaning with file://, pvc:// and oci://",
    ),
    "secret without fetching": (
        {"model": {"uri": "file:///a", "secretRef": {"name": "a"}}},
        "secretRef has no meaning with file:// and pvc://",
    ),
    "secret by a wrong name": (
        {"model": {"uri": "hf://a/b", "secretRef": {"name": "A"}}},
        "name must be the name of a Secret of this namespace",
    ),
    "two caches": (
        {"model": {"uri": "hf://a/b", "cache": {"emptyDir": {}, "claimName": "a"}}},
        "cache must be exactly one of emptyDir, claimName, newClaim and hostPath",
    ),
    "no cache": (
        {"model": {"uri": "hf://a/b", "cache": {}}},
        "cache must be exactly one of emptyDir, claimName, newClaim and hostPath",
    ),
    "claim of a cache": (
        {"model": {"uri": "hf://a/b", "cache": {"claimName": "A b"}}},
        "claimName must be the name of a PersistentVolumeClaim of this namespace",
    ),
    "cache on the node": (
        {"model": {"uri": "hf://a/b", "cache": {"hostPath": "/a/../b"}}},
        "hostPath must be an absolute path other than /, without '..' segments",
    ),
    "tool parser": ({"engine": {"toolParser": "x"}}, 'supported values: "auto", "none"'),
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


def changed(part, change):
    """`change` laid over `part`, None removing; lists are taken as they are, mistakes included."""
    result = dict(part)
    for name, value in change.items():
        inner = changed(part.get(name, {}), value) if isinstance(value, dict) else value
        result[name] = inner
    return {name: value for name, value in result.items() if value is not None}


def refusal(kubectl, body) -> str:
    result = kubectl.tried("apply", "--filename=-", stdin=json.dumps(body))
    assert result.returncode != 0, "it was accepted"
    return result.stderr


@pytest.mark.parametrize("case", WRONG_SPECS)
def test_a_wrong_spec_is_refused(kubectl_shared, case):
    change, sentence = WRONG_SPECS[case]
    body = changed(RIGHT, {"spec": change})

    assert sentence in refusal(kubectl_shared, body)


@pytest.mark.parametrize("case", WRONG_NAMES)
def test_a_name_that_no_service_can_bear_is_refused(kubectl_shared, case):
    body = {**RIGHT, "metadata": {"name": WRONG_NAMES[case]}}

    assert "metadata.name must be a DNS label of at most 52 characters" in refusal(
        kubectl_shared, body
    )


def test_there_are_at_least_twenty_of_them():
    assert len({sentence for _, sentence in WRONG_SPECS.values()}) >= 20


def test_the_right_one_is_accepted(kubectl_shared):
    kubectl_shared("apply", "--dry-run=server", "--filename=-", stdin=json.dumps(RIGHT))


def test_the_served_name_cannot_change(kubectl):
    kubectl.apply(RIGHT)
    body = changed(RIGHT, {"spec": {"model": {"servedName": "other"}}})

    sentence = "servedName is immutable, since clients address the model by it"
    assert sentence in refusal(kubectl, body)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"size": "5Gi"}, "size can only grow, as in the claim"),
        ({"storageClassName": "slow"}, "storageClassName is immutable, as it is in the claim"),
        ({"accessMode": "ReadWriteMany"}, "accessMode is immutable, as it is in the claim"),
    ],
)
def test_a_claim_of_ours_can_only_grow(kubectl, change, sentence):
    def body(**more):
        claim = {"size": "10Gi", "storageClassName": "fast", **more}
        model = {"uri": "hf://org/name", "cache": {"newClaim": claim}}
        return changed(RIGHT, {"spec": {"model": model}})

    kubectl.apply(body())
    assert sentence in refusal(kubectl, body(**change))
    kubectl.apply(body(size="11Gi"))


def test_a_claim_of_ours_cannot_be_taken_away(kubectl):
    model = {"uri": "hf://org/name", "cache": {"newClaim": {"size": "1Gi"}}}
    kubectl.apply(changed(RIGHT, {"spec": {"model": model}}))
    model = {"uri": "hf://org/name", "cache": {"newClaim": None, "claimName": "other"}}

    sentence = "newClaim cannot be added or taken away"
    assert sentence in refusal(kubectl, changed(RIGHT, {"spec": {"model": model}}))


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
