"""Weights quantised while loading give what the same weights give when stored quantised."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.runner_driver import Job, run_jobs
from tests.engine.tiny_models import prompts, save_tiny

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.at_load import quantize_rows
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams

NUM_NEW = 8


def config_of(kind: str) -> dict[str, Any]:
    numbers = {"num_bits": 8, "type": "float" if kind == "fp8" else "int", "symmetric": True}
    inputs = {**numbers, "strategy": "token", "dynamic": True}
    group = {
        "targets": ["Linear"],
        "weights": {**numbers, "strategy": "channel"},
        "input_activations": inputs if kind == "fp8" else None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized" if kind == "fp8" else "int-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
        "quantization_status": "compressed",
    }


def store_quantized(source: Path, target: Path, kind: str) -> None:
    """The checkpoint with every matrix of its layers (but routers) stored by rows of 8 bits."""
    target.mkdir()
    stored = {}
    for name, loaded in load_file(source / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if not name.startswith("model.layers") or loaded.dim() != 2 or module.endswith(".gate"):
            stored[name] = loaded
            continue
        tensor = loaded.float()
        top = 448.0 if kind == "fp8" else 127.0
        scale = tensor.abs().amax(1, keepdim=True) / top
        values = tensor / scale
        stored[f"{module}.weight_scale"] = scale
        stored[name] = (
            values.to(torch.float8_e4m3fn) if kind == "fp8" else values.round().to(torch.int8)
        )
    save_file(stored, target / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = config_of(kind)
    (target / "config.json").write_text(json.dumps(config))


def logprobs(folder: Path, quantization: str) -> torch.Tensor:
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(
                path=str(folder), device="cpu", dtype="float32", quantization=quantization
            ),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )
    params = SamplingParams(temperature=0.0, logprobs=5)
    jobs = [Job(prompt, NUM_NEW, params) for prompt in prompts([5, 20])]
    found = [
        [token.token_id, *(top.logprob for top in token.logprobs.top)]
        for result in run_jobs(runner, jobs)[0].results
        for token in result.sampled
    ]
    runner.close()
    return torch.tensor(found)


@pytest.mark.parametrize("kind", ["fp8", "int8"])
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_quantising_at_load_equals_loading_what_was_quantised_before(
    family: str, kind: str, tmp_path: Path
) -> None:
    save_tiny(family, tmp_path / "plain")
    store_quantized(tmp_path / "plain", tmp_path / "stored", kind)
    at_load = logprobs(tmp_path / "plain", kind)
    assert torch.equal(at_load, logprobs(tmp_path / "stored", "auto"))
    plain = logprobs(tmp_path / "plain", "auto")
    assert (at_load[0] - plain[0]).abs().max() > 1e-3, "nothing was quantised"


@pytest.mark.parametrize(("kind", "largest_error"), [("fp8", 2**-4), ("int8", 0.5 / 127)])
def test_rows_lose_no_more_than_half_a_step(kind: Any, largest_error: float) -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    weight[3] = 0.0
    values, scales = quantize_rows(weight, kind)
    error = (values.float() * scales - weight).abs()
    # fp8 has three bits of mantissa, so its error goes with the weight; int8's with the row's top.
    reach = weight.abs() if kind == "fp8" else weight.abs().amax(1, keepdim=True)
    assert bool((error <= largest_error * reach + 1e-4).all())
    assert values[3].float().tolist() == [0.0] * 64


def test_experts_stored_as_one_tensor_are_refused(tmp_path: Path) -> None:
    save_tiny("gpt_oss", tmp_path)
    with pytest.raises(CheckpointError, match=r"holds all experts .* cannot be quantised at load"):
        logprobs(tmp_path, "int8")
