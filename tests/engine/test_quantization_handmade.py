"""Formats and settings that no fixture has, written by hand: the logits are those of the weights
that the files mean."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.handmade_quantized import (
    Writer,
    awq,
    fp8,
    gptq,
    pack,
    packed,
    part_in_shards,
    quantize,
)
from tests.engine.runner_driver import Job, run_jobs
from tests.engine.tiny_models import prompts, save_tiny

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams

TOLERANCE = 1e-3
NUM_TOP = 20
SMALL = {"num_hidden_layers": 2}


@dataclass(frozen=True)
class Case:
    config: dict[str, Any]
    writer: Writer
    family: str = "llama"
    overrides: dict[str, Any] = field(default_factory=dict)
    others: Callable[[str], bool] = lambda module: module.endswith(("lm_head", "embed_tokens"))
    """Modules that stay as they are; a router always does."""
    num_files: int = 1


def gptq_config(**fields: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, **fields}


def round_config(packing: str) -> dict[str, Any]:
    return {
        "quant_method": "auto-round",
        "bits": 4,
        "group_size": 32,
        "sym": False,
        "data_type": "int",
        "packing_format": packing,
    }


def tensors_config(file_format: str, **weights: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": file_format,
        "ignore": ["lm_head", "re:.*mlp.gate$"],
        "config_groups": {"group_0": group},
    }


FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
CASES = {
    "gptq, act-order": Case(gptq_config(desc_act=True), gptq(is_spread=True)),
    "gptq, act-order with static groups": Case(gptq_config(desc_act=True), gptq()),
    "gptq, one group a row, in shards": Case(
        gptq_config(group_size=-1), gptq(group_size=-1), num_files=3
    ),
    "gptq, 8 bits, small groups, version 2": Case(
        gptq_config(bits=8, group_size=16, desc_act=True, checkpoint_format="gptq_v2"),
        gptq(8, 16, is_spread=True, zero_offset=0),
    ),
    "gptq, a short last group": Case(gptq_config(group_size=64), gptq(group_size=64)),
    "gptq, tied head": Case(
        gptq_config(sym=True), gptq(is_symmetric=True), family="llama-tied-bias"
    ),
    "gptq, quantised head": Case(
        gptq_config(lm_head=True), gptq(), others=lambda module: module.endswith("embed_tokens")
    ),
    "gptq, experts": Case(gptq_config(), gptq(), family="qwen3_moe"),
    "auto-round, asymmetric": Case(
        round_config("auto_round"), gptq(zero_offset=0, has_g_idx=False)
    ),
    "auto-round for gptqmodel": Case(
        round_config("auto_round:gptqmodel"), gptq(zero_offset=0, has_g_idx=False)
    ),
    "awq, small groups": Case(
        {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}, awq(16)
    ),
    "awq, one group a row, in shards": Case(
        {"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": True, "version": "GEMM"},
        awq(-1),
        family="qwen2",
        num_files=2,
    ),
    "packed, actorder": Case(
        tensors_config(
            "pack-quantized", num_bits=4, strategy="group", group_size=32, actorder="group"
        ),
        packed(4, 32, is_symmetric=True, is_spread=True),
    ),
    "packed, 8 bits, asymmetric rows, experts": Case(
        tensors_config("pack-quantized", num_bits=8, strategy="channel", symmetric=False),
        packed(8, -1, is_symmetric=False),
        family="qwen3_moe",
    ),
    "fp8 alone, a tensor": Case(
        tensors_config("float-quantized", strategy="tensor", **FLOAT8), fp8((-1, -1))
    ),
    "fp8 alone, short blocks": Case(
        tensors_config("float-quantized", strategy="block", block_structure=[64, 64], **FLOAT8),
        fp8((64, 64)),
        family="qwen3",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_weights_that_the_files_mean(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = save_tiny(case.family, tmp_path, **SMALL, **case.overrides)

    def writer_of(module: str) -> Writer | None:
        is_kept = case.others(module) or module.endswith((".mlp.gate", "norm"))
        return None if is_kept else case.writer

    quantize(tmp_path, model, case.config, writer_of)
    if case.num_files > 1:
        part_in_shards(tmp_path, case.num_files)
    assert largest_error(tmp_path, model) < TOLERANCE


def test_modules_of_one_model_may_be_stored_in_two_formats(tmp_path: Path) -> None:
    model = save_tiny("llama", tmp_path, **SMALL)
    numbers = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": True}
    config = {
        "quant_method": "compressed-tensors",
        "format": "mixed-precision",
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["re:.*self_attn.*"],
                "weights": numbers,
                "format": "pack-quantized",
            },
            "group_1": {
                "targets": ["re:.*mlp.*"],
                "weights": FLOAT8 | {"strategy": "channel"},
                "format": "float-quantized",
            },
        },
    }
    int4, eight = packed(4, 32, is_symmetric=True), fp8((1, -1))

    def writer_of(module: str) -> Writer | None:
        if "self_attn" in module:
            return int4
        return eight if ".mlp." in module else None

    quantize(tmp_path, model, config, writer_of)
    assert largest_error(tmp_path, model) < TOLERANCE


def test_the_packer_puts_the_first_value_into_the_low_bits() -> None:
    assert pack(torch.arange(8)[None], 4, 1).tolist() == [[0x76543210]]
    assert pack(torch.tensor([[15, 0, 0, 0, 0, 0, 0, 15]]), 4, 1).tolist() == [[0xF - 2**28]]


def largest_error(folder: Path, model: Any) -> float:
    """Over the likeliest logprobs after each prompt."""
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", dtype="float32"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )
    asked = prompts([9, 30])
    params = SamplingParams(temperature=0.0, logprobs=NUM_TOP)
    outcomes = run_jobs(runner, [Job(prompt, 1, params) for prompt in asked])
    runner.close()
    errors = []
    for token in outcomes[0].results[0].sampled:
        with torch.inference_mode():
            logits = model(torch.tensor([asked[token.row]])).logits[0, -1]
        expected = logits.float().log_softmax(-1)
        assert token.logprobs is not None
        assert len(token.logprobs.top) == NUM_TOP
        errors += [abs(float(expected[top.token_id]) - top.logprob) for top in token.logprobs.top]
    assert len(errors) == NUM_TOP * len(asked)
    return max(errors)
