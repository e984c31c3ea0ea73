"""A real model on the GPU: the tokens of transformers there, its loss on a text, JSON by schema."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.text_loss import TEXT, token_logprobs
from tests.gpu.closeness import assert_close
from tests.gpu.gpu_engine import generate, greedy, make_core
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo_engine.batch import Runner
from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    KVCacheDType,
    ModelSettings,
    SchedulerSettings,
)
from octavo_engine.core.engine import EngineCore
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams
from octavo_engine.structured.grammars import json_grammar
from octavo_engine.text.tokenizer import load_tokenizer

QUESTIONS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    'Translate "good morning" into Spanish.',
    "Explain gravity to a child in two sentences.",
    "Write a haiku about winter.",
]
NUM_NEW = 60


def runner_of(
    path: Path, dtype: Any, kv_cache_dtype: KVCacheDType = "auto", *, share: float = 0.3
) -> Runner:
    """share: of the GPU's memory, whatever else this process holds there included."""
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(path), dtype=dtype, device="cuda", max_model_len=1024),
            cache=CacheSettings(kv_cache_dtype=kv_cache_dtype, gpu_memory_utilization=share),
            scheduler=SchedulerSettings(max_num_seqs=16),
        )
    )


@pytest.fixture(scope="module")
def prompt_ids(smollm2_path: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(smollm2_path)
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
        )
        for question in QUESTIONS
    ]


@pytest.fixture(scope="module")
def bfloat16_runner(smollm2_path: Path) -> Iterator[Runner]:
    runner = runner_of(smollm2_path, "bfloat16")
    yield runner
    runner.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_are_those_of_transformers(
    dtype: str, smollm2_path: Path, prompt_ids: list[list[int]]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=dtype).cuda().eval()
    runner = runner_of(smollm2_path, dtype)
    outputs = generate(make_core(runner), prompt_ids, greedy(NUM_NEW))
    runner.close()
    assert_close(model, prompt_ids, outputs)


def test_a_cache_in_eight_bits_changes_the_loss_by_less_than_a_hundredth(
    smollm2_path: Path, bfloat16_runner: Runner
) -> None:
    token_ids = load_tokenizer(str(smollm2_path)).encode(TEXT)
    narrow_runner = runner_of(smollm2_path, "bfloat16", "fp8", share=0.6)
    exact = token_logprobs(bfloat16_runner, token_ids)
    narrow = token_logprobs(narrow_runner, token_ids)
    num_blocks = narrow_runner.info.num_blocks, bfloat16_runner.info.num_blocks
    narrow_runner.close()
    print(f"loss {-exact.mean():.4f}, in eight bits {-narrow.mean():.4f}")
    assert not torch.equal(exact, narrow)
    assert (narrow.mean() - exact.mean()).abs() < -0.01 * exact.mean()
    assert num_blocks[0] > 1.9 * num_blocks[1]


def test_answers_follow_a_schema(
    smollm2_path: Path, bfloat16_runner: Runner, prompt_ids: list[list[int]]
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 20},
            "people": {"type": "integer", "minimum": 0, "maximum": 10**8},
        },
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    tokenizer = load_tokenizer(str(smollm2_path))
    params = SamplingParams(
        temperature=0.7,
        seed=3,
        max_tokens=200,
        eos_token_ids=tokenizer.eos_token_ids,
        grammar=json_grammar(schema, "schema").text(),
    )
    core = EngineCore(bfloat16_runner, SchedulerSettings())
    for tokens in generate(core, prompt_ids, params):
        answer = json.loads(tokenizer.decode(tokens))
        assert answer.keys() == {"city", "people"}
        assert isinstance(answer["people"], int)
