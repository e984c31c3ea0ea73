"""GPTQ's convention of zero points is told from the data, whatever the config's label."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.fixture_reference import compare, prompts_of, read_reference

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.quantization.zero_points import Sample, find_zero_offset
from octavo_engine.runner.build import build_runner

FIXTURES = Path(__file__).parents[1] / "fixtures"


def words(values: torch.Tensor, bits: int) -> torch.Tensor:
    """[R, C] -> [R, C * bits / 32] int32, low bits first."""
    runs = values.reshape(len(values), -1, 32 // bits)
    shifts = torch.arange(0, 32, bits)
    packed = (runs << shifts).sum(-1)
    return torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32)


def quantized_sample(stored_offset: int, bits: int, mean: float = 0.0) -> Sample:
    """A matrix of normal weights, quantised by its own range in groups of 32 inputs."""
    generator = torch.Generator().manual_seed(bits)
    weight = torch.randn(128, 8, 32, generator=generator) + mean
    lowest, highest = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    scale = (highest - lowest) / (2**bits - 1)
    zero = (-lowest / scale).round().clamp(1, 2**bits - 1)
    values = (weight / scale + zero).round().clamp(0, 2**bits - 1).long()
    rows = values.reshape(128, -1)
    return Sample(
        qweight=words(rows, bits).t(),
        qzeros=words(zero.squeeze(-1).long().t() - stored_offset, bits),
    )


@pytest.mark.parametrize("offset", [0, 1])
def test_asymmetric_4_bit_weights_tell_by_their_mean(offset: int) -> None:
    assert find_zero_offset([quantized_sample(offset, 4)], 4) == offset


def test_weights_that_are_not_zero_on_average_do_not_tell() -> None:
    assert find_zero_offset([quantized_sample(1, 4, mean=0.2)], 4) is None


def test_asymmetric_8_bit_weights_do_not_tell() -> None:
    assert find_zero_offset([quantized_sample(1, 8)], 8) is None


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("offset", [0, 1])
def test_symmetric_checkpoints_tell_by_their_one_value(bits: int, offset: int) -> None:
    middle = torch.full((2, 32), 2 ** (bits - 1) - offset)
    sample = Sample(
        qweight=words(torch.zeros(32, 64, dtype=torch.long), bits).t(), qzeros=words(middle, bits)
    )
    assert find_zero_offset([sample], bits) == offset


@pytest.mark.parametrize(
    ("name", "false_label"),
    [
        ("llama-gptq-int4-g128-asym-act", "gptq_v2"),
        ("llama-gptq-v2-int4-g128-asym", "gptq"),
        ("llama-gptq-int8-g128-sym", "gptq_v2"),
    ],
)
def test_a_checkpoint_with_the_wrong_label_gives_the_right_logits(
    name: str, false_label: str, tmp_path: Path
) -> None:
    folder = tmp_path / name
    shutil.copytree(FIXTURES / name, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = false_label
    (folder / "config.json").write_text(json.dumps(config))
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", dtype="float32"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )
    for prompt in compare(runner, prompts_of(read_reference(folder)), 1e-3):
        assert prompt.max_logit_error < 1e-3
    runner.close()


def test_the_label_decides_where_the_data_do_not_tell(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(FIXTURES / "llama-gptq-int8-g128-sym", folder)
    tensors = load_file(folder / "model.safetensors")
    ones = int.from_bytes(b"\x01\x01\x01\x01")
    for name, tensor in tensors.items():
        if name.endswith(".qzeros"):
            tensor[0, 0] += ones  # no longer one value everywhere: 127 becomes 128 in four columns
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    errors = []
    for label in ("gptq", "gptq_v2"):
        config = json.loads((folder / "config.json").read_text())
        config["quantization_config"]["checkpoint_format"] = label
        (folder / "config.json").write_text(json.dumps(config))
        runner = build_runner(
            EngineConfig(
                model=ModelSettings(path=str(folder), device="cpu", dtype="float32"),
                cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
            )
        )
        prompts = compare(runner, prompts_of(read_reference(folder)), 1e-3)
        errors.append(max(prompt.max_logit_error for prompt in prompts))
        runner.close()
    assert errors[0] < errors[1] / 2
