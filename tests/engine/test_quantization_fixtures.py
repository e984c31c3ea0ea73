"""Checkpoints written by the quantising tools give the logits and tokens of their reference.

Runs the folders of tests/fixtures, or those of the folder that OCTAVO_FIXTURES names.
"""

import os
from pathlib import Path

import pytest
from tests.engine.fixture_reference import Comparison, compare, prompts_of, read_reference

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.runner.build import build_runner

ROOT = Path(os.environ.get("OCTAVO_FIXTURES", Path(__file__).parents[1] / "fixtures"))
FOLDERS = sorted(path.parent for path in ROOT.glob("*/reference.json"))
WEIGHT_ONLY = [folder for folder in FOLDERS if "full" not in read_reference(folder)]
ROUNDED_INPUTS = [folder for folder in FOLDERS if "full" in read_reference(folder)]

LOGIT_TOLERANCE = 1e-3
# Where inputs are rounded, a last bit's difference can flip one rounding; what that does to the
# logits is about 0.1. Inputs left unrounded cost 0.2 to 0.9 on every prompt.
FLIPPED_TOLERANCE = 0.3
# Differences of two logits may be off by the sum of both errors, and kernels by twice the rounding.
BFLOAT16_FACTOR = 4.0


def compare_with_reference(folder: Path, dtype: str) -> list[Comparison]:
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", dtype=dtype),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )
    found = compare(runner, prompts_of(read_reference(folder)), LOGIT_TOLERANCE)
    runner.close()
    return found


def test_there_are_fixtures() -> None:
    assert len(WEIGHT_ONLY) > 0
    assert len(ROUNDED_INPUTS) > 0


@pytest.mark.parametrize("folder", WEIGHT_ONLY, ids=lambda folder: folder.name)
def test_weight_only_checkpoints_agree_with_their_dequantised_reference(folder: Path) -> None:
    for prompt in compare_with_reference(folder, "float32"):
        assert prompt.max_logit_error < LOGIT_TOLERANCE
        assert prompt.num_greedy >= prompt.num_comparable > 0


@pytest.mark.parametrize("folder", ROUNDED_INPUTS, ids=lambda folder: folder.name)
def test_checkpoints_with_rounded_inputs_agree_with_their_reference(folder: Path) -> None:
    prompts = compare_with_reference(folder, "float32")
    errors = [prompt.max_logit_error for prompt in prompts]
    assert min(errors) < LOGIT_TOLERANCE
    assert max(errors) < FLIPPED_TOLERANCE
    for prompt in prompts:
        if prompt.max_logit_error < LOGIT_TOLERANCE:
            assert prompt.num_greedy > 0


@pytest.mark.parametrize("folder", WEIGHT_ONLY, ids=lambda folder: folder.name)
def test_weight_only_checkpoints_are_off_by_no_more_than_rounding_in_bfloat16(
    folder: Path,
) -> None:
    honest_errors = read_reference(folder)["bf16_compute"]["max_abs_diff_on_top20"]
    prompts = compare_with_reference(folder, "bfloat16")
    for prompt, honest_error in zip(prompts, honest_errors, strict=True):
        assert prompt.max_logit_error < BFLOAT16_FACTOR * honest_error
