"""Quantised checkpoints on the GPU give the logits of their reference, dequantised at load."""

from pathlib import Path

import pytest
from tests.engine.fixture_reference import Comparison, compare, prompts_of, read_reference

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.runner.build import build_runner

FIXTURES = Path(__file__).parents[1] / "fixtures"
WEIGHT_ONLY = [
    "llama-gptq-int4-g128-asym-act",
    "qwen2-awq-int4-g64-asym",
    "llama-ct-w4a16-g128-asym",
    "gemma2-bitsandbytes-nf4",
]
ROUNDED_INPUTS = ["llama-fp8-block", "llama-fp8-static", "llama-w8a8-int8"]
LOGIT_TOLERANCE = 5e-3
"""Float32 products on the GPU sum in another order."""
FLIPPED_TOLERANCE = 0.3
"""A last bit's difference can flip the rounding of an input; see the CPU's tests."""


def errors(name: str) -> list[Comparison]:
    folder = FIXTURES / name
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(
                path=str(folder), device="cuda", dtype="float32", max_model_len=256
            ),
            cache=CacheSettings(block_size=16),
            scheduler=SchedulerSettings(max_num_seqs=4),
        )
    )
    found = compare(runner, prompts_of(read_reference(folder)), LOGIT_TOLERANCE)
    runner.close()
    return found


@pytest.mark.parametrize("name", WEIGHT_ONLY)
def test_weight_only_checkpoints_agree_with_their_reference(name: str) -> None:
    for prompt in errors(name):
        assert prompt.max_logit_error < LOGIT_TOLERANCE
        assert prompt.num_greedy >= prompt.num_comparable > 0


@pytest.mark.parametrize("name", ROUNDED_INPUTS)
def test_checkpoints_with_rounded_inputs_agree_with_their_reference(name: str) -> None:
    for prompt in errors(name):
        assert prompt.max_logit_error < FLIPPED_TOLERANCE
