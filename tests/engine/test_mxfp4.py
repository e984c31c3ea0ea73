"""gpt-oss's experts in 4-bit floats, 32 with one scale; on ranks: `test_parallel_parity`."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.mxfp4_checkpoint import save_mxfp4
from tests.engine.runner_driver import Job, run_jobs
from tests.engine.tiny_models import forced_tokens, prompts
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.quantization.mxfp4 import Mxfp4Experts
from octavo_engine.runner.build import build_runner

Tensors = dict[str, torch.Tensor]
BLOCKS = "model.layers.1.mlp.experts.down_proj_blocks"
SCALES = "model.layers.1.mlp.experts.down_proj_scales"


def config_of(folder: Path, quantization: str = "auto") -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(
            path=str(folder), device="cpu", dtype="float32", quantization=quantization
        ),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.05),
    )


def changed(folder: Path, change: Callable[[Tensors], object]) -> EngineConfig:
    save_mxfp4(folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata={"format": "pt"})
    return config_of(folder)


@pytest.mark.parametrize("num_inputs", [32, 96])
def test_every_code_and_scale_means_what_it_means_to_transformers(num_inputs: int) -> None:
    torch.manual_seed(0)
    num_groups = num_inputs // 32
    blocks = torch.randint(0, 256, (3, 40, num_groups, 16), dtype=torch.uint8)
    scales = torch.randint(0, 253, (3, 40, num_groups), dtype=torch.uint8)
    shape = (3, 40, num_inputs)
    found = Mxfp4Experts().dequantize({"blocks": blocks, "scales": scales}, shape)
    expected = convert_moe_packed_tensors(blocks, scales, dtype=torch.bfloat16)
    assert torch.equal(found.transpose(1, 2), expected)


@pytest.mark.parametrize("asked", ["auto", "mxfp4"])
def test_greedy_tokens_are_those_of_transformers(asked: str, tmp_path: Path) -> None:
    model = save_mxfp4(tmp_path)
    runner = build_runner(config_of(tmp_path, asked))
    for prompt in prompts([12, 30]):
        (outcome,) = run_jobs(runner, [Job(prompt, 8)])
        assert outcome.token_ids == forced_tokens(model, prompt, outcome.token_ids)
    runner.close()


@pytest.mark.parametrize("asked", ["fp8", "gptq", "none"])
def test_another_quantization_is_refused_naming_both(asked: str, tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    with pytest.raises(ConfigError, match=f"'{asked}' was asked for, but .* mxfp4 \\(4-bit floats"):
        build_runner(config_of(tmp_path, asked))


def test_missing_scales_are_named(tmp_path: Path) -> None:
    config = changed(tmp_path, lambda tensors: tensors.pop(SCALES))
    with pytest.raises(CheckpointError, match=f"lacks tensor '{SCALES}'"):
        build_runner(config)


def test_scales_of_another_shape_are_refused_with_both(tmp_path: Path) -> None:
    config = changed(
        tmp_path, lambda tensors: tensors.update({SCALES: tensors[SCALES][:, :-1].contiguous()})
    )
    with pytest.raises(CheckpointError, match=rf"'{SCALES}' has shape .* the config asks for \["):
        build_runner(config)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    config = changed(tmp_path, lambda tensors: tensors[SCALES].view(-1)[7:8].fill_(255))
    with pytest.raises(CheckpointError, match="down_proj': a scale is 255"):
        build_runner(config)


def test_inputs_that_blocks_do_not_divide_are_refused_with_the_numbers() -> None:
    with pytest.raises(CheckpointError, match="'m' has 40 inputs, which is not a multiple of 32"):
        Mxfp4Experts().tensors("m", (2, 8, 40), {})


def test_a_config_that_promises_blocks_which_the_file_lacks_is_refused(tmp_path: Path) -> None:
    config = changed(tmp_path, lambda tensors: tensors.pop(BLOCKS))
    with pytest.raises(CheckpointError, match=f"lacks tensor '{BLOCKS}'"):
        build_runner(config)
