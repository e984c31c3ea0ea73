"""`LLM` over SmolLM2: the tokens of transformers on 20 conversations, whatever the pages do."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_models import forced_tokens
from transformers import AutoModelForCausalLM

from octavo_engine import LLM, SamplingParams

NUM_NEW = 48
QUESTIONS = [
    "What is the capital of Portugal?",
    "Name three rivers in Africa.",
    "Write a short greeting for a birthday card.",
    "How many legs does a spider have?",
    "Translate 'thank you' into German.",
    "Give me a recipe for pancakes in three steps.",
    "Who painted the Mona Lisa?",
    "What is photosynthesis?",
    "List the first five prime numbers.",
    "Why do leaves fall in autumn?",
    "Write a two-line poem about rain.",
    "What does HTTP stand for?",
    "Describe a cat without the word 'animal'.",
    "What is 17 plus 26?",
    "Explain what a loop is in programming.",
    "Which planet is the largest?",
    "Give an antonym of 'generous'.",
    "What is the boiling point of water in Fahrenheit?",
    "Tell me a fact about penguins.",
    "Summarise the story of Cinderella in one sentence.",
]
SYSTEM = {"role": "system", "content": "You answer briefly and never apologise to the reader."}
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW, ignore_eos=True)


@pytest.fixture(scope="module")
def chosen(smollm2_path: Path) -> Callable[[tuple[int, ...], tuple[int, ...]], list[int]]:
    """What transformers chooses behind a prompt at each of some tokens; asked anew only for new
    tokens."""
    reference = AutoModelForCausalLM.from_pretrained(smollm2_path, dtype=torch.float32).eval()

    @functools.cache
    def choose(prompt: tuple[int, ...], tokens: tuple[int, ...]) -> list[int]:
        return forced_tokens(reference, list(prompt), list(tokens))

    return choose


@pytest.mark.parametrize("swap_space_gib", [0.0, 0.1])
def test_twenty_conversations_get_the_reference_tokens(
    smollm2_path: Path,
    swap_space_gib: float,
    chosen: Callable[[tuple[int, ...], tuple[int, ...]], list[int]],
) -> None:
    talks = [[SYSTEM, {"role": "user", "content": question}] for question in QUESTIONS]
    with LLM(
        str(smollm2_path),
        dtype="float32",
        device="cpu",
        block_size=16,
        max_model_len=512,
        max_num_batched_tokens=96,
        cpu_kv_cache_gib=0.045,  # some 65 pages: not all twenty fit with what they generate
        swap_space_gib=swap_space_gib,
    ) as llm:
        outputs = llm.chat(talks, GREEDY, use_tqdm=False)
        stats = llm._engine.stats()
        tokenizer = llm.get_tokenizer()
    assert stats.preemptions_total > 0
    assert stats.prefix_hits_tokens_total > 0, "the system prompt is shared"
    for output in outputs:
        tokens = output.outputs[0].token_ids
        assert len(tokens) == NUM_NEW
        assert tokens == chosen(tuple(output.prompt_token_ids), tuple(tokens))
        assert output.outputs[0].text == tokenizer.decode(tokens)
