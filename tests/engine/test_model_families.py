"""Every family gives the tokens of transformers on a tiny seeded checkpoint: the same in float32,
as good ones in bfloat16."""

import copy
from pathlib import Path

import pytest
import torch
from tests.engine.logprob_close import (
    WITH_ALTERNATIVES,
    assert_logprob_close,
    logprob_errors,
)
from tests.engine.runner_driver import Job, run_jobs, tokens_of
from tests.engine.tiny_models import (
    FAMILY_CONFIGS,
    VOCAB_SIZE,
    forced_tokens,
    prompts,
    save_tiny,
)

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.model_runner import ModelRunner

NUM_NEW = 48
NUM_NEW_BF16 = 24
LENGTHS = [1, 5, 16, 23, 24, 25, 40, 70]
ALL_EXPERTS = {"qwen3_moe": 6, "mixtral": 4, "gpt_oss": 4}
"""For bfloat16, where a near tie in a router would send a token to another expert."""


def tiny_runner(folder: Path, **model: object) -> ModelRunner:
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", **model),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    reference = save_tiny(name, tmp_path)
    runner = tiny_runner(tmp_path)
    jobs = [Job(prompt, NUM_NEW) for prompt in prompts(LENGTHS)]
    together = tokens_of(run_jobs(runner, jobs))
    for job, tokens in zip(jobs, together, strict=True):
        assert len(tokens) == NUM_NEW
        assert tokens == forced_tokens(reference, job.token_ids, tokens)
    assert len({token for tokens in together for token in tokens}) > VOCAB_SIZE // 4, (
        "the tokens are too much alike to prove much"
    )
    for chunk in (1, 7):
        assert tokens_of(run_jobs(runner, jobs, chunk=chunk)) == together
    for job, tokens in list(zip(jobs, together, strict=True))[::6]:
        assert tokens_of(run_jobs(runner, [job])) == [tokens]
    runner.close()


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_bfloat16_is_as_close_to_float32_as_that_of_transformers(name: str, tmp_path: Path) -> None:
    routing = {"num_experts_per_tok": ALL_EXPERTS[name]} if name in ALL_EXPERTS else {}
    exact = save_tiny(name, tmp_path, **routing)
    rounded = copy.deepcopy(exact).to(torch.bfloat16)
    runner = tiny_runner(tmp_path, dtype="bfloat16")
    jobs = [Job(prompt, NUM_NEW_BF16, WITH_ALTERNATIVES) for prompt in prompts(LENGTHS)]
    errors = []
    for row, (job, outcome) in enumerate(zip(jobs, run_jobs(runner, jobs), strict=True)):
        assert_logprob_close(rounded, job.token_ids, row, outcome)
        errors.append(logprob_errors(exact, rounded, job.token_ids, row, outcome))
    ours, theirs = (sum(part) / len(jobs) for part in zip(*errors, strict=True))
    assert ours < 1.1 * theirs
    runner.close()
