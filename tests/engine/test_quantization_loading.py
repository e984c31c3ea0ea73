"""Broken and unusual quantised checkpoints: refused with names and numbers, or loaded all the same.

Each is made from a fixture by one change.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.fixture_reference import compare, prompts_of, read_reference

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, ParallelSettings
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.loading.source import SafetensorsSource
from octavo_engine.parallel.driver import build_parallel_runner
from octavo_engine.progress import silent
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.model_runner import ModelRunner

Tensors = dict[str, torch.Tensor]
FIXTURES = Path(__file__).parents[1] / "fixtures"
QUERY = "model.layers.0.self_attn.q_proj"
GPTQ = "llama-gptq-int4-g128-asym-act"


def changed(
    name: str,
    folder: Path,
    change_tensors: Callable[[Tensors], object] = lambda tensors: None,
    change_config: Callable[[dict[str, Any]], object] = lambda config: None,
) -> Path:
    shutil.copytree(FIXTURES / name, folder / name)
    tensors = load_file(folder / name / "model.safetensors")
    change_tensors(tensors)
    save_file(tensors, folder / name / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / name / "config.json").read_text())
    change_config(config)
    (folder / name / "config.json").write_text(json.dumps(config))
    return folder / name


def load(folder: Path) -> ModelRunner:
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", dtype="float32"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )


def max_error(folder: Path) -> float:
    runner = load(folder)
    found = compare(runner, prompts_of(read_reference(folder)), 1e-3)
    runner.close()
    return max(prompt.max_logit_error for prompt in found)


@pytest.fixture
def no_weight_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(self: SafetensorsSource, *names: object) -> None:
        raise AssertionError("a weight was read before the checkpoint was refused")

    for way in ("tensors", "read"):
        monkeypatch.setattr(SafetensorsSource, way, read)


@pytest.mark.usefixtures("no_weight_is_read")
@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        (GPTQ, "scales"),
        (GPTQ, "qweight"),
        (GPTQ, "g_idx"),
        ("llama-ct-w4a16-g128-asym", "weight_zero_point"),
        ("llama-fp8-block", "weight_scale"),
        ("llama-fp8-static", "input_scale"),
        ("llama-w8a8-int8", "weight_scale"),
    ],
)
def test_a_missing_tensor_of_a_quantised_matrix_is_named(
    name: str, suffix: str, tmp_path: Path
) -> None:
    folder = changed(name, tmp_path, lambda tensors: tensors.pop(f"{QUERY}.{suffix}"))
    with pytest.raises(CheckpointError, match=f"lacks tensor '{QUERY}.{suffix}'"):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_a_group_size_that_the_tensors_contradict_is_refused_with_both_shapes(
    tmp_path: Path,
) -> None:
    def change(config: dict[str, Any]) -> None:
        config["quantization_config"]["group_size"] = 32

    folder = changed(GPTQ, tmp_path, change_config=change)
    message = r"qzeros' has shape \[2, 32\], the config asks for \[8, 32\]"
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_scales_of_blocks_in_another_shape_are_refused(tmp_path: Path) -> None:
    def transpose(tensors: Tensors) -> None:
        name = f"{QUERY}.weight_scale"
        tensors[name] = tensors[name].t().contiguous()

    folder = changed("llama-fp8-block", tmp_path, transpose)
    with pytest.raises(CheckpointError, match=r"has shape \[1, 2\], the config asks for \[2, 1\]"):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_packed_words_of_another_width_are_refused(tmp_path: Path) -> None:
    def widen(tensors: Tensors) -> None:
        tensors[f"{QUERY}.qzeros"] = tensors[f"{QUERY}.qzeros"].long()

    folder = changed(GPTQ, tmp_path, widen)
    with pytest.raises(CheckpointError, match="qzeros' is I64, the config asks for I32"):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
@pytest.mark.parametrize("name", [GPTQ, "llama-fp8-static"])
def test_quantised_tensors_without_a_config_are_refused(name: str, tmp_path: Path) -> None:
    folder = changed(name, tmp_path, change_config=lambda config: config.pop("quantization_config"))
    with pytest.raises(CheckpointError, match="belongs to a quantised matrix, but neither"):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_fp8_numbers_are_not_taken_for_plain_weights(tmp_path: Path) -> None:
    def drop_scales(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith("_scale")]:
            del tensors[name]

    folder = changed(
        "llama-fp8-static",
        tmp_path,
        drop_scales,
        lambda config: config.pop("quantization_config"),
    )
    with pytest.raises(CheckpointError, match="is F8_E4M3, the config asks for F16 or BF16"):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_a_config_that_no_tensor_follows_is_refused(tmp_path: Path) -> None:
    def dequantize(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            module = name.removesuffix(".weight_scale")
            tensors[f"{module}.weight"] = tensors[f"{module}.weight"].float() * tensors.pop(name)

    folder = changed("llama-w8a8-int8", tmp_path, dequantize)
    with pytest.raises(CheckpointError, match=r"says compressed-tensors \(int8.*no matrix"):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_modules_packed_together_that_round_their_inputs_differently_are_refused(
    tmp_path: Path,
) -> None:
    def dequantize(tensors: Tensors) -> None:
        scale = tensors.pop(f"{QUERY}.weight_scale")
        tensors[f"{QUERY}.weight"] = tensors[f"{QUERY}.weight"].float() * scale

    folder = changed("llama-w8a8-int8", tmp_path, dequantize)
    message = f"round them differently: '{QUERY}': not quantised; .*k_proj': int8"
    with pytest.raises(CheckpointError, match=message):
        load(folder)


@pytest.mark.usefixtures("no_weight_is_read")
def test_ranks_that_the_heads_cannot_be_shared_by_are_refused_with_both_numbers() -> None:
    config = EngineConfig(
        model=ModelSettings(path=str(FIXTURES / GPTQ), device="cpu"),
        parallel=ParallelSettings(tensor_parallel_size=3),
    )
    with pytest.raises(ConfigError, match="size 3 cannot share the model's 8 attention heads"):
        build_parallel_runner(config, None, silent, "console")


@pytest.mark.usefixtures("no_weight_is_read")
def test_an_unknown_method_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    def rename(config: dict[str, Any]) -> None:
        config["quantization_config"]["quant_method"] = "aqlm"

    with pytest.raises(CheckpointError, match="method 'aqlm' is not supported, only gptq, awq"):
        load(changed(GPTQ, tmp_path, change_config=rename))


@pytest.mark.usefixtures("no_weight_is_read")
def test_a_config_that_is_not_an_object_is_refused(tmp_path: Path) -> None:
    def spoil(config: dict[str, Any]) -> None:
        config["quantization_config"] = "gptq"

    with pytest.raises(CheckpointError, match="quantization_config 'gptq' is not an object"):
        load(changed(GPTQ, tmp_path, change_config=spoil))


def test_a_group_index_beyond_the_groups_names_the_module(tmp_path: Path) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[f"{QUERY}.g_idx"][5] = 7

    folder = changed(GPTQ, tmp_path, spoil)
    with pytest.raises(CheckpointError, match=f"'{QUERY}': an input belongs to group 7"):
        load(folder)


def test_a_module_stored_unquantised_is_loaded_as_it_is(tmp_path: Path) -> None:
    def dequantize(tensors: Tensors) -> None:
        scale = tensors.pop(f"{QUERY}.weight_scale").float()
        words = tensors.pop(f"{QUERY}.weight_packed")
        zeros = tensors.pop(f"{QUERY}.weight_zero_point")
        del tensors[f"{QUERY}.weight_shape"]
        values = (words[:, :, None] >> torch.arange(0, 32, 4)) & 15
        zero = (zeros[:, None, :] >> torch.arange(0, 32, 4)[:, None]) & 15
        values = values.reshape(len(words), -1).float()
        zero = zero.reshape(len(words), -1).float()
        group = torch.arange(values.shape[1]) // 128
        tensors[f"{QUERY}.weight"] = (values - zero[:, group]) * scale[:, group]

    folder = changed("llama-ct-w4a16-g128-asym", tmp_path, dequantize)
    assert max_error(folder) < 1e-3


def test_biases_of_zero_that_the_model_has_no_place_for_are_accepted(tmp_path: Path) -> None:
    def add_bias(tensors: Tensors) -> None:
        tensors[f"{QUERY}.bias"] = torch.zeros(256, dtype=torch.float16)

    assert max_error(changed(GPTQ, tmp_path, add_bias)) < 1e-3


def test_a_bias_that_the_model_has_no_place_for_is_refused(tmp_path: Path) -> None:
    def add_bias(tensors: Tensors) -> None:
        tensors[f"{QUERY}.bias"] = torch.ones(256, dtype=torch.float16)

    folder = changed(GPTQ, tmp_path, add_bias)
    with pytest.raises(CheckpointError, match=f"no place for tensor '{QUERY}.bias'.*not zero"):
        load(folder)


def test_scales_of_a_quantised_cache_are_left_aside(tmp_path: Path) -> None:
    def add_scales(tensors: Tensors) -> None:
        tensors["model.layers.0.self_attn.k_scale"] = torch.ones(1)

    assert max_error(changed(GPTQ, tmp_path, add_scales)) < 1e-3


def test_the_config_may_lie_in_a_file_of_its_own(tmp_path: Path) -> None:
    folder = changed(GPTQ, tmp_path)
    config = json.loads((folder / "config.json").read_text())
    quantization = config.pop("quantization_config")
    del quantization["quant_method"]
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "quantize_config.json").write_text(json.dumps(quantization))
    assert max_error(folder) < 1e-3


def test_scales_under_deepseeks_name_and_config_are_the_same(tmp_path: Path) -> None:
    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.endswith(".weight_scale")]:
            tensors[f"{name}_inv"] = tensors.pop(name)

    def rewrite(config: dict[str, Any]) -> None:
        config["quantization_config"] = {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        }

    assert max_error(changed("llama-fp8-block", tmp_path, rename, rewrite)) < 0.1


def rename_experts(tensors: Tensors, block: str) -> None:
    matrices = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
    for name in [name for name in tensors if ".block_sparse_moe." in name]:
        renamed = name.replace("block_sparse_moe", block)
        for published, other in matrices.items():
            renamed = renamed.replace(f".{published}.", f".{other}.")
        tensors[renamed] = tensors.pop(name)


@pytest.mark.parametrize("block", ["mlp", "block_sparse_moe"])
def test_experts_under_the_names_that_tools_give_them_are_found(block: str, tmp_path: Path) -> None:
    name = "mixtral-fp8-dynamic"
    folder = changed(name, tmp_path, lambda tensors: rename_experts(tensors, block))
    assert max_error(folder) < 1e-3


def test_an_expert_under_both_names_is_refused(tmp_path: Path) -> None:
    def double(tensors: Tensors) -> None:
        expert = "model.layers.0.block_sparse_moe.experts.0"
        tensors[f"{expert}.gate_proj.weight"] = tensors[f"{expert}.w1.weight"].clone()

    with pytest.raises(CheckpointError, match=r"is there twice, as .*experts\.0\.w1\.weight"):
        load(changed("mixtral-fp8-dynamic", tmp_path, double))


def test_gate_and_up_may_be_split_where_they_are_published_as_one(tmp_path: Path) -> None:
    def split(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".gate_up_proj." in name]:
            tensor = tensors.pop(name)
            is_shared = name.endswith(".g_idx")
            halves = (tensor, tensor.clone()) if is_shared else tensor.chunk(2, dim=1)
            for half, part in zip(halves, ("gate_proj", "up_proj"), strict=True):
                tensors[name.replace("gate_up_proj", part)] = half.contiguous()

    assert max_error(changed("phi3-gptq-int4-g64-sym", tmp_path, split)) < 1e-3


def test_a_bitsandbytes_state_that_contradicts_the_tensors_is_refused(tmp_path: Path) -> None:
    def halve_blocks(tensors: Tensors) -> None:
        name = f"{QUERY}.weight.quant_state.bitsandbytes__nf4"
        state = json.loads(bytes(tensors[name].tolist())) | {"blocksize": 32}
        tensors[name] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

    folder = changed("gemma2-bitsandbytes-nf4", tmp_path, halve_blocks)
    with pytest.raises(CheckpointError, match="512 scales for 32768 weights in blocks of 32"):
        load(folder)


def test_a_bitsandbytes_matrix_without_its_state_is_refused(tmp_path: Path) -> None:
    name = f"{QUERY}.weight.quant_state.bitsandbytes__nf4"
    folder = changed("gemma2-bitsandbytes-nf4", tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(CheckpointError, match=f"lacks tensor '{name}'"):
        load(folder)
