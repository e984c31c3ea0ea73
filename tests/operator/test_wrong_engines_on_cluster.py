"""Wrong settings of the engine are refused at `kubectl apply`, by sentences with field and rule."""

import pytest
from tests.operator.wrong_services import refusals

pytestmark = pytest.mark.cluster

CPU = {"accelerator": {"resourceName": "none"}}
WRONG = {
    "unknown engine field": (
        {"engine": {"tensorParalelSize": 2}},
        'unknown field "spec.engine.tensorParalelSize"',
    ),
    "no ranks": (
        {"engine": {"tensorParallelSize": 0}},
        "tensorParallelSize must be between 1 and 8, since a replica lives on one node",
    ),
    "too many ranks": (
        {"engine": {"tensorParallelSize": 32}},
        "tensorParallelSize must be between 1 and 8, since a replica lives on one node",
    ),
    "quantization": (
        {"engine": {"quantization": "int3"}},
        'spec.engine.quantization: Unsupported value: "int3": supported values: "auto", "none"',
    ),
    "dtype": (
        {"engine": {"dtype": "fp64"}},
        'spec.engine.dtype: Unsupported value: "fp64": supported values: "auto", "float32"',
    ),
    "type of pages": (
        {"engine": {"kvCacheDtype": "int4"}},
        'spec.engine.kvCacheDtype: Unsupported value: "int4": supported values: "auto", "fp8"',
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
    "TLS": (
        {"engine": {"extraArgs": ["--tls-cert-file=/tls/tls.crt", "--tls-key-file=/tls/tls.key"]}},
        "extraArgs must not set TLS",
    ),
    "file of options": (
        {"engine": {"extraArgs": ["--config=/etc/octavo/serve.yaml"]}},
        "extraArgs must not name a file of options",
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
    "CPU pages": (
        {**CPU, "engine": {"cpuKvCacheGiB": 0}},
        "cpuKvCacheGiB must be above 0 and at most 4096",
    ),
    "CPU pages with GPU": (
        {"engine": {"cpuKvCacheGiB": 1}},
        "engine.cpuKvCacheGiB applies only where accelerator.resourceName is none",
    ),
    "chat template": (
        {"engine": {"chatTemplate": " \n"}},
        "chatTemplate must not be empty; leave it out for the model's own",
    ),
    "tool parser": ({"engine": {"toolParser": "x"}}, 'supported values: "auto", "none"'),
}


@pytest.fixture(scope="module")
def refused(kubectl_shared, tmp_path_factory):
    return refusals(kubectl_shared, tmp_path_factory.mktemp("wrong"), WRONG)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_spec_is_refused(refused, case):
    _, sentence = WRONG[case]

    assert sentence in refused.get(case, "it was accepted")
