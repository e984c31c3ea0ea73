"""What `octavo fit` says against what the engine measured when it started on an H200."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.gpu_experts import MODELS as EXPERTS
from tests.bench.gpu_quantized import scheme_named
from tests.bench.gpu_ranks import LLAMA_70B
from tests.bench.gpu_workloads import LLAMA_8B, MODELS

from octavo_engine.config import KVCacheDType
from octavo_engine.errors import ConfigError
from octavo_engine.fetch.plan import Room, plan, read_shape
from octavo_engine.fit import Fit, FitQuestion, gpu_bytes, plan_fit
from octavo_engine.loading.config_file import parse_config
from octavo_engine.memory_facts import GIB, kv_itemsize
from octavo_engine.models.families import build_model_config
from octavo_engine.quantization.choose import at_load_scheme
from octavo_engine.quantization.read_config import read_scheme

MEASURED = [
    # gate and up in one product with the activation, max_num_seqs, step tokens;
    # weights, tables, activations, graphs, pages of `gpu_memory_gib`
    (True, 256, 8192, 14.96, 0.08, 0.53, 0.30, 111.51),
    (True, 1024, 8192, 14.96, 0.11, 2.08, 0.48, 109.75),
    (False, 256, 8192, 14.96, 0.08, 0.91, 0.34, 111.09),
    (False, 256, 16384, 14.96, 0.08, 1.81, 0.34, 110.19),
    (False, 1024, 8192, 14.96, 0.11, 2.08, 0.59, 109.64),
]
"""Llama-3.1-8B's shape in bfloat16 at max_model_len 8192, logged on 2026-11-30 at c1a3ef6; the last
three at 5fca7f3, before that product."""


MEASURED_EXPERTS = [
    ("qwen3-30b-a3b", 56.87, 0.09, 2.47, 0.48, 67.46),
    ("gpt-oss-20b", 38.96, 0.09, 3.26, 0.63, 84.44),
]
"""Mixtures of experts in bfloat16 with 1,024 rows, 8,192 tokens a step, max_model_len 8192; logged
on 2026-11-30 at 83230ba."""


MEASURED_SHARES: dict[str, tuple[Any, ...]] = {
    "int4": (LLAMA_8B, {"scheme": scheme_named("int4")}, 5.32, 0.10, 2.08, 0.82, 119.06),
    "fp8": (LLAMA_8B, {"scheme": scheme_named("fp8")}, 8.46, 0.10, 2.08, 0.59, 116.14),
    "two ranks": (LLAMA_8B, {"num_ranks": 2}, 7.48, 0.09, 2.08, 0.81, 116.09),
    "two ranks of 70B": (LLAMA_70B, {"num_ranks": 2}, 65.71, 0.12, 2.08, 1.00, 57.60),
}
"""Quantised models and shares of ranks with 1,024 rows, 8,192 tokens a step, max_model_len 8192;
logged on 2026-11-30 at 2043cfc."""


def question(**fields: Any) -> FitQuestion:
    return FitQuestion(gpu_bytes=gpu_bytes("h200"), max_model_len=8192, **fields)


@pytest.fixture(scope="module")
def llama() -> Any:
    return build_model_config(parse_config(LLAMA_8B, "test"))


def assert_near(fit: Fit, measured: tuple[float, ...], graphs_gib: float = 0.06) -> None:
    """Each part in GiB, in the order of MEASURED. graphs_gib: how far the graphs may be off."""
    weights, tables, activations, graphs, pages = measured
    assert fit.weights_bytes / GIB == pytest.approx(weights, rel=0.01)
    assert fit.tables_bytes / GIB == pytest.approx(tables, abs=0.02)
    assert fit.activations_bytes / GIB == pytest.approx(activations, rel=0.03)
    assert fit.graphs_bytes / GIB == pytest.approx(graphs, abs=graphs_gib)
    held_gib = fit.num_kv_tokens * fit.kv_token_bytes / GIB
    assert held_gib == pytest.approx(pages, rel=0.005)


@pytest.mark.parametrize("measured", MEASURED)
def test_every_part_is_near_what_the_engine_measured(
    llama: Any, measured: tuple[float, ...]
) -> None:
    is_hopper, num_seqs, tokens, *parts = measured
    asked = question(
        is_hopper=bool(is_hopper), max_num_seqs=int(num_seqs), max_step_tokens=int(tokens)
    )
    fit = plan_fit(llama, asked)
    assert_near(fit, tuple(parts))
    assert fit.max_model_len == 8192
    assert fit.is_enough


@pytest.mark.parametrize("measured", MEASURED_EXPERTS, ids=lambda measured: measured[0])
def test_the_parts_of_mixtures_of_experts_too(measured: tuple[Any, ...]) -> None:
    name, *parts = measured
    config = build_model_config(parse_config(EXPERTS[name], "test"))
    fit = plan_fit(config, question(max_num_seqs=1024, max_step_tokens=8192))
    assert_near(fit, tuple(parts))


@pytest.mark.parametrize("name", MEASURED_SHARES)
def test_the_parts_of_quantized_models_and_of_ranks_too(name: str) -> None:
    shape, fields, *parts = MEASURED_SHARES[name]
    config = build_model_config(parse_config(shape, "test"))
    asked = question(is_hopper=True, max_num_seqs=1024, max_step_tokens=8192, **fields)
    weights, tables, activations, graphs, pages = parts
    # What NCCL's calls hold in graphs is not counted.
    graphs_gib = 0.25 if asked.num_ranks > 1 else 0.06
    fit = plan_fit(config, asked)
    assert_near(fit, (weights, tables, activations, graphs, pages), graphs_gib)


def test_experts_that_are_dequantised_at_load_are_counted_so() -> None:
    config = build_model_config(parse_config(EXPERTS["gpt-oss-20b"], "test"))
    stored = plan_fit(config, question(scheme=read_scheme({"quant_method": "mxfp4"}, "test")))
    assert stored == plan_fit(config, question())


def test_a_quantized_model_leaves_more_for_tokens(llama: Any) -> None:
    plain = plan_fit(llama, question())
    packed = plan_fit(llama, question(scheme=at_load_scheme("fp8")))
    assert packed.weights_bytes / GIB == pytest.approx(8.47, abs=0.05)
    saved = plain.weights_bytes - packed.weights_bytes
    gained = (packed.num_kv_tokens - plain.num_kv_tokens) * plain.kv_token_bytes
    assert gained == pytest.approx(saved, rel=0.01)


def test_pages_of_8_bits_hold_twice_the_tokens(llama: Any) -> None:
    plain, small = plan_fit(llama, question()), plan_fit(llama, question(kv_cache_dtype="fp8"))
    assert small.kv_token_bytes == plain.kv_token_bytes // 2
    assert small.num_kv_tokens == pytest.approx(2 * plain.num_kv_tokens, rel=0.001)


def test_ranks_share_weights_and_heads(llama: Any) -> None:
    one, four = plan_fit(llama, question()), plan_fit(llama, question(num_ranks=4))
    assert four.weights_bytes == pytest.approx(one.weights_bytes / 4, rel=0.001)
    assert four.kv_token_bytes == one.kv_token_bytes // 4
    assert four.activations_bytes < one.activations_bytes


def test_ranks_that_cannot_share_are_refused(llama: Any) -> None:
    with pytest.raises(ConfigError, match="tensor_parallel_size 3 cannot share"):
        plan_fit(llama, question(num_ranks=3))


@pytest.mark.parametrize("num_ranks", [1, 2, 8])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "fp8"])
def test_the_fetchs_plan_counts_a_token_as_the_engine_does(
    llama: Any, num_ranks: int, kv_cache_dtype: KVCacheDType
) -> None:
    shape = read_shape(LLAMA_8B)
    assert shape is not None
    room = Room(
        memory_bytes=None,
        pages_bytes=None,
        utilization=0.92,
        num_ranks=num_ranks,
        kv_itemsize=kv_itemsize(2, kv_cache_dtype),
        is_cpu=False,
    )
    ours = plan_fit(llama, question(num_ranks=num_ranks, kv_cache_dtype=kv_cache_dtype))
    assert plan(shape, 0, room).kv_token_bytes == ours.kv_token_bytes


def test_a_model_that_is_too_large_holds_no_token(llama: Any) -> None:
    small = dataclasses.replace(question(), gpu_bytes=gpu_bytes("16GiB"))
    fit = plan_fit(llama, small)
    assert fit.num_kv_tokens == 0
    assert not fit.is_enough


def test_a_context_beyond_the_pages_is_told() -> None:
    config = build_model_config(parse_config(MODELS["llama8b"], "test"))
    asked = FitQuestion(gpu_bytes=gpu_bytes("l4"), max_model_len=100_000, max_num_seqs=8)
    fit = plan_fit(config, asked)
    assert 0 < fit.max_model_len < 100_000
    assert not fit.is_enough


def test_a_context_beyond_the_models_is_refused(llama: Any) -> None:
    with pytest.raises(ConfigError, match=r"200000 is more than the model's context 131072"):
        plan_fit(llama, FitQuestion(gpu_bytes=gpu_bytes("h200"), max_model_len=200_000))


def test_gpus_by_name_or_memory() -> None:
    assert gpu_bytes("H100") == gpu_bytes("h100") > 79 * GIB
    assert gpu_bytes("24GiB") == 24 * GIB
    for name in ("h1000", "24", "GiB"):
        with pytest.raises(ConfigError, match="is not known"):
            gpu_bytes(name)


def test_float32_takes_twice_the_memory(llama: Any) -> None:
    wide = plan_fit(llama, question(dtype=torch.float32))
    assert wide.weights_bytes == 2 * plan_fit(llama, question()).weights_bytes
    assert wide.kv_token_bytes == 2 * plan_fit(llama, question()).kv_token_bytes


def run_fit(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo_engine", "fit", str(folder), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def config_alone(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def test_the_command_prints_each_part_from_a_config_alone(config_alone: Path) -> None:
    done = run_fit(config_alone, "--gpus", "h200", "--quantization", "fp8")
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "8.46 GiB" in lines["weights"]
    assert {"activations", "graphs", "KV tokens", "largest context"} <= lines.keys()
    assert "131,072" in lines["largest context"]


def test_the_command_fails_with_the_numbers_where_it_does_not_fit(config_alone: Path) -> None:
    done = run_fit(config_alone, "--gpus", "16GiB")
    assert done.returncode == 1
    assert "does not fit" in done.stderr
    done = run_fit(config_alone, "--gpus", "gtx")
    assert done.returncode == 2
    assert "'gtx' is not known" in done.stderr
