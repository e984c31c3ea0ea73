"""One field of spec.engine, one option of `octavo serve`."""

import pytest

from octavo_operator import api
from octavo_operator.engine_args import serve_args


def args(body, device="cuda"):
    return serve_args(api.parse(body), device)


def test_a_minimal_service_sets_only_what_has_a_default(service_body):
    assert args(service_body()) == [
        "serve",
        "/model",
        "--host=0.0.0.0",
        "--port=8000",
        "--served-model-name=chat",
        "--device=cuda",
        "--tensor-parallel-size=1",
        "--quantization=auto",
        "--dtype=auto",
        "--prefix-caching",
        "--drain-seconds=300",
        "--termination-log",
        "/dev/termination-log",
        "--log-format=json",
    ]


@pytest.mark.parametrize(
    ("field", "value", "option"),
    [
        ("tensorParallelSize", 2, "--tensor-parallel-size=2"),
        ("quantization", "awq", "--quantization=awq"),
        ("dtype", "float16", "--dtype=float16"),
        ("kvCacheDtype", "fp8", "--kv-cache-dtype=fp8"),
        ("maxModelLen", 4096, "--max-model-len=4096"),
        ("maxNumSeqs", 8, "--max-num-seqs=8"),
        ("maxNumBatchedTokens", 512, "--max-num-batched-tokens=512"),
        ("gpuMemoryUtilization", 0.5, "--gpu-memory-utilization=0.5"),
        ("cpuKvCacheGiB", 1.5, "--cpu-kv-cache-gib=1.5"),
        ("blockSize", 32, "--block-size=32"),
        ("prefixCaching", False, "--no-prefix-caching"),
        ("swapSpaceGiB", 4, "--swap-space-gib=4.0"),
        ("targetItlMs", 30, "--target-itl-ms=30.0"),
        ("toolParser", "hermes", "--tool-parser=hermes"),
        ("reasoningParser", "think", "--reasoning-parser=think"),
        ("chatTemplate", "{{ 1 }}", "--chat-template=/etc/octavo/settings/chat-template.jinja"),
        ("extraArgs", ["--max-body-mib=8"], "--max-body-mib=8"),
    ],
)
def test_a_field_becomes_its_option(service_body, field, value, option):
    assert option in args(service_body({"engine": {field: value}}))


def test_every_engine_field_is_passed_on(service_body):
    elsewhere = {"env"}  # goes into the pod's environment
    values = {"quantization": "awq", "dtype": "float16", "prefixCaching": False}
    values |= {"toolParser": "hermes", "reasoningParser": "think", "chatTemplate": "{{ messages }}"}
    values |= {"kvCacheDtype": "fp8"}
    plain = args(service_body())
    for name, field in api.EngineSpec.model_fields.items():
        alias = field.alias or name
        value = values.get(alias, ["--x"] if alias == "extraArgs" else 7)
        if alias not in elsewhere:
            assert args(service_body({"engine": {alias: value}})) != plain, alias


def test_a_cpu_service_runs_on_the_cpu(service_body):
    body = service_body({"accelerator": {"resourceName": "none"}})

    assert "--device=cpu" in args(body, device="cuda")


def test_the_drain_time_reaches_the_engine(service_body):
    assert "--drain-seconds=9" in args(service_body({"rollout": {"drainSeconds": 9}}))
