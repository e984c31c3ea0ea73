"""The engine on the GPU against transformers on the same GPU; prefix hits and preemption too."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.tiny_models import prompts, save_tiny
from tests.gpu.closeness import assert_close, reference_logits
from tests.gpu.gpu_engine import generate, greedy, make_core, make_runner

from octavo_engine.sampling_params import SamplingParams

FAMILIES = ["llama", "qwen3", "gemma2", "gemma3_text", "glm4", "phi3", "olmo2"]
EXPERT_FAMILIES = ["qwen3_moe", "mixtral", "gpt_oss"]
LENGTHS = [1, 7, 16, 33, 64, 90]
NUM_NEW = 40

WIDE = {
    "hidden_size": 512,
    "intermediate_size": 6400,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 2048,
    "initializer_range": 0.05,
}
"""Wide enough for bfloat16's matrix kernels, and for the fused products of small steps."""


@pytest.mark.parametrize("name", [*FAMILIES, *EXPERT_FAMILIES])
def test_float32_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = save_tiny(name, tmp_path).cuda()
    core = make_core(make_runner(tmp_path, dtype=torch.float32))
    prompt_ids = prompts(LENGTHS)
    outputs = generate(core, prompt_ids, greedy(NUM_NEW))
    assert_close(model, prompt_ids, outputs)


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("lengths", [[33], LENGTHS], ids=["alone", "together"])
def test_bfloat16_tokens_are_near_the_float32_choice(
    name: str, lengths: list[int], tmp_path: Path
) -> None:
    """No token is further from the exact choice than the reference's own rounding explains."""
    model = save_tiny(name, tmp_path, **WIDE).to("cuda", torch.bfloat16)
    model.save_pretrained(tmp_path)
    core = make_core(make_runner(tmp_path, dtype=torch.bfloat16, block_size=64))
    prompt_ids = prompts(lengths, 2048)
    outputs = generate(core, prompt_ids, greedy(NUM_NEW))
    narrow = [
        reference_logits(model, prompt, tokens)
        for prompt, tokens in zip(prompt_ids, outputs, strict=True)
    ]
    exact_model = model.float()
    for prompt, tokens, rounded in zip(prompt_ids, outputs, narrow, strict=True):
        exact = reference_logits(exact_model, prompt, tokens)
        error = (rounded - exact).abs().max()
        assert error < 0.5 * exact.std(), "rounding so large would excuse any token"
        chosen = exact.gather(-1, torch.tensor(tokens, device=exact.device)[:, None])[:, 0]
        gap = (exact.max(dim=-1).values - chosen).max()
        assert gap <= 2 * error, f"{gap:.3f} below the best, the reference errs by {error:.3f}"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, save_tiny("llama", folder).cuda()


@pytest.mark.parametrize("step_tokens", [8192, 40], ids=["whole prompts", "chunks beside decodes"])
def test_captured_steps_give_the_tokens_of_eager_ones(
    llama: tuple[Path, Any], step_tokens: int
) -> None:
    prompt_ids = prompts(LENGTHS)
    outputs = [
        generate(
            make_core(
                make_runner(llama[0], dtype=torch.float32, captures=captures),
                max_num_batched_tokens=step_tokens,
            ),
            prompt_ids,
            greedy(NUM_NEW),
        )
        for captures in (True, False)
    ]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("name", EXPERT_FAMILIES)
def test_steps_with_experts_are_captured(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    runners = [
        make_runner(tmp_path, dtype=torch.float32, captures=captures) for captures in (True, False)
    ]
    _, decode, *_ = runners[0].captured_functions()
    assert decode.is_captured
    outputs = [generate(make_core(runner), prompts(LENGTHS), greedy(NUM_NEW)) for runner in runners]
    assert outputs[0] == outputs[1]


def test_prefix_hits_change_no_token(llama: tuple[Path, Any]) -> None:
    core = make_core(make_runner(llama[0], dtype=torch.float32))
    shared = prompts([70])[0]
    prompt_ids = [shared + own for own in prompts([3, 9, 20, 31])]
    outputs = generate(core, prompt_ids, greedy(NUM_NEW))
    again = generate(core, prompt_ids, greedy(NUM_NEW))
    assert core.stats().prefix_hits_tokens_total > 0
    assert outputs == again
    assert_close(llama[1], prompt_ids, outputs)


def test_preemption_changes_no_token(llama: tuple[Path, Any]) -> None:
    prompt_ids = prompts([30, 34, 38, 42, 46, 50])
    core = make_core(make_runner(llama[0], dtype=torch.float32, num_blocks=24))
    outputs = generate(core, prompt_ids, greedy(60))
    assert core.stats().preemptions_total > 0
    assert_close(llama[1], prompt_ids, outputs)


def test_a_seed_means_the_same_tokens_alone_and_in_a_batch(llama: tuple[Path, Any]) -> None:
    params = SamplingParams(
        temperature=0.9, top_p=0.9, top_k=40, seed=7, max_tokens=30, ignore_eos=True
    )
    runner = make_runner(llama[0], dtype=torch.float32)
    prompt_ids = prompts(LENGTHS)
    together = generate(make_core(runner), prompt_ids, params)
    alone = [generate(make_core(runner), [prompt], params)[0] for prompt in prompt_ids]
    assert together == alone


def test_logprobs_and_penalties_beside_plain_rows(llama: tuple[Path, Any]) -> None:
    runner = make_runner(llama[0], dtype=torch.float32)
    prompt = prompts([20])[0]
    plain = generate(make_core(runner), [prompt], greedy(20))[0]
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, logprobs=5)
    assert generate(make_core(runner), [prompt], params)[0] == plain
    params = SamplingParams(
        temperature=0.0, max_tokens=20, ignore_eos=True, allowed_token_ids=[9, 10, 11]
    )
    assert set(generate(make_core(runner), [prompt], params)[0]) <= {9, 10, 11}
