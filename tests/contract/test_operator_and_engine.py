"""What the operator tells the engine, and the engine the operator, is understood there."""

from pathlib import Path
from typing import Any, get_args

import click
import pytest
import typer
import yaml
from prometheus_client import generate_latest

from octavo_engine.cli.main import app
from octavo_engine.cli.termination import Termination, TerminationReason, encode
from octavo_engine.config import KVCacheDType
from octavo_engine.fetch import uri as model_uri
from octavo_engine.memory_facts import MAX_RANKS
from octavo_engine.messages import EngineInfo, EngineStats
from octavo_engine.server.metrics_registry import ServerMetrics
from octavo_operator import api, engine_args, pod_causes, pod_volumes, samples
from octavo_operator.autoscale import ReplicaLoad
from octavo_operator.settings_files import settings_files


@pytest.fixture(scope="module")
def serve() -> Any:
    """The engine's `serve` command as its parser knows it."""
    return typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]  # typed as Command, is a Group


def service(spec: dict[str, Any]) -> api.InferenceService:
    metadata = {"name": "chat", "namespace": "n", "uid": "u", "generation": 1}
    return api.parse(
        {"metadata": metadata, "spec": {"model": {"uri": "file:///models/chat"}, **spec}}
    )


ALL_FIELDS = {
    "tensorParallelSize": 2,
    "quantization": "none",
    "dtype": "float16",
    "kvCacheDtype": "fp8",
    "maxModelLen": 4096,
    "maxNumSeqs": 8,
    "maxNumBatchedTokens": 512,
    "gpuMemoryUtilization": 0.5,
    "cpuKvCacheGiB": 1.5,
    "blockSize": 32,
    "swapSpaceGiB": 4,
    "targetItlMs": 30,
    "toolParser": "hermes",
    "reasoningParser": "think",
}
"""Each with a value that is not the engine's default; read back below."""
AUTH = {"apiKeysSecretRef": {"name": "keys"}}


def parsed(serve: Any, args: list[str]) -> dict[str, Any]:
    assert args[0] == "serve"
    context: click.Context = serve.make_context("serve", args[1:])
    return context.params


def test_the_engine_reads_back_every_field(serve):
    options = parsed(serve, engine_args.serve_args(service({"engine": ALL_FIELDS}), "cuda"))

    read = {
        alias: options[name]
        for name, field in api.EngineSpec.model_fields.items()
        if (alias := field.alias or name) in ALL_FIELDS
    }
    assert read == ALL_FIELDS
    assert options["model"] == "/model"
    assert options["served_model_name"] == ["chat"]
    assert str(options["termination_log"]) == engine_args.TERMINATION_LOG
    assert options["port"] == engine_args.ENGINE_PORT


def test_the_engine_finds_the_chat_template_where_the_pod_mounts_it(serve):
    made = service({"engine": {"chatTemplate": "{{ messages }}"}})
    file = Path(parsed(serve, engine_args.serve_args(made, "cuda"))["chat_template"])

    assert str(file.parent) in [mount["mountPath"] for mount in pod_volumes.mounts(made)]
    assert settings_files(made) == {file.name: "{{ messages }}"}


@pytest.mark.parametrize("value", [True, False])
def test_the_engine_reads_back_prefix_caching(serve, value):
    args = engine_args.serve_args(service({"engine": {"prefixCaching": value}}), "cuda")

    assert parsed(serve, args)["prefix_caching"] is value


@pytest.mark.parametrize("dtype", ["auto", "float32", "float16", "bfloat16"])
def test_the_engine_knows_every_dtype_of_the_api(serve, dtype):
    args = engine_args.serve_args(service({"engine": {"dtype": dtype}}), "cuda")

    assert parsed(serve, args)["dtype"] == dtype


def test_both_know_the_same_types_of_pages(serve):
    asked = api.EngineSpec.model_fields["kv_cache_dtype"].annotation
    (choices, _none) = get_args(asked)

    assert get_args(choices) == get_args(KVCacheDType)


def test_the_engine_fetches_what_the_operator_says():
    fetch = typer.main.get_command(app).commands["fetch"]  # type: ignore[attr-defined]  # typed as Command, is a Group
    made = service(
        {
            "model": {"uri": "hf://org/name@v1"},
            "engine": ALL_FIELDS,
            "accelerator": {"memoryGiB": 80},
        }
    )
    args = engine_args.fetch_args(made, made.model_source, "/secret", "cuda")
    options = fetch.make_context("fetch", args[1:]).params

    assert options["model"] == "hf://org/name@v1"
    assert str(options["to"]) == made.model_source.serve_path
    assert str(options["secret_dir"]) == "/secret"
    assert (options["memory_gib"], options["device"]) == (80, "cuda")
    assert (options["tensor_parallel_size"], options["max_model_len"]) == (2, 4096)
    assert options["kv_cache_dtype"] == "fp8"


@pytest.mark.parametrize(
    "uri",
    [
        "hf://a/b",
        "hf://a/b@v1/q.gguf",
        "modelscope://a/b",
        "s3://buck/x",
        "gs://buck",
        "https://h/x",
    ],
)
def test_a_uri_that_the_operator_takes_is_one_that_the_engine_fetches(uri):
    assert str(model_uri.parse(uri)) == uri
    assert service({"model": {"uri": uri}}).model_source.uri == uri


@pytest.fixture(scope="module")
def engine_schema(request):
    """Of spec.engine in the CRD."""
    path = request.config.rootpath / "crds" / "inferenceservices.yaml"
    crd = yaml.safe_load(path.read_text(encoding="utf-8"))
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return root["properties"]["spec"]["properties"]["engine"]


def test_further_arguments_cannot_set_what_a_field_sets(serve, engine_schema):
    """The rule in the CRD lists every option that the operator gives, and only real options."""
    rule = engine_schema["properties"]["extraArgs"]["x-kubernetes-validations"][1]["rule"]
    reserved = set(rule.partition("^--(")[2].partition(")")[0].split("|"))

    given: set[str] = {"no-prefix-caching"}
    everything = {**ALL_FIELDS, "chatTemplate": "{{ messages }}"}
    args = engine_args.serve_args(service({"engine": everything, "auth": AUTH}), "cuda")
    given |= {arg[2:].partition("=")[0] for arg in args if arg.startswith("--")}
    known = {
        name.lstrip("-")
        for parameter in serve.params
        for name in (*parameter.opts, *parameter.secondary_opts)
    }
    assert reserved == given
    assert reserved <= known


def test_the_rule_about_ranks_is_the_engines(engine_schema):
    (rule,) = engine_schema["properties"]["tensorParallelSize"]["x-kubernetes-validations"]

    assert rule["rule"] == f"self >= 1 && self <= {MAX_RANKS}"


def test_every_reason_of_the_engine_is_a_reason_of_the_operator():
    assert set(get_args(TerminationReason)) == set(pod_causes._ENGINE_REASONS)


@pytest.mark.parametrize("reason", get_args(TerminationReason))
def test_the_engines_last_words_reach_the_status(reason):
    words = encode(Termination(reason, "because of this")).decode()
    ended = {"exitCode": 2, "reason": "Error", "message": words}
    pod = {
        "metadata": {"name": "chat-1"},
        "status": {"containerStatuses": [{"name": "engine", "state": {"terminated": ended}}]},
    }

    cause = pod_causes.cause(pod)
    assert cause is not None
    assert (cause.reason, cause.message) == (reason, "pod chat-1 ended: because of this")


def test_the_operator_reads_the_load_that_the_engine_tells() -> None:
    stats = EngineStats(
        num_running=2,
        num_waiting=3,
        kv_blocks_total=8,
        kv_blocks_used=4,
        kv_blocks_cached=0,
        prompt_tokens_total=0,
        generation_tokens_total=0,
        prefix_queries_tokens_total=0,
        prefix_hits_tokens_total=0,
        preemptions_total=0,
        finished_total={},
        steps_total=0,
        last_step_age_s=0.0,
        has_work=True,
    )
    info = EngineInfo(
        vocab_size=8,
        max_model_len=64,
        block_size=16,
        num_blocks=8,
        max_num_seqs=16,
        dtype="float32",
        device="cpu",
    )
    metrics = ServerMetrics("chat", lambda: (stats, info))

    assert samples.parse(generate_latest(metrics.registry).decode()) == ReplicaLoad(
        num_pending=3, num_running=2, kv_use=0.5, max_running=16
    )
