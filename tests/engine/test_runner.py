"""The runner's own promises: recomputation, seeds, prompt logprobs, block copies, swap."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from tests.engine.runner_driver import GREEDY, Job, run_jobs, tokens_of
from tests.engine.tiny_models import VOCAB_SIZE, prompts, save_tiny

from octavo_engine.batch import AdmittedRow, Batch, BlockCopy, RowWork
from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.messages import REQUEST_FAILED
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.sampler import sampler
from octavo_engine.sampler.adjustments import Adjustments
from octavo_engine.sampling_params import SamplingParams

SAMPLED = SamplingParams(temperature=1.5, top_p=0.95)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, save_tiny("llama", folder)


@pytest.fixture(scope="module")
def runner(model: tuple[Path, Any]) -> Iterator[ModelRunner]:
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(model[0]), device="cpu"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.01, swap_space_gib=0.001),
        )
    )
    yield runner
    runner.close()


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
@pytest.mark.parametrize("num_kept", [1, 15, 16, 17, 29])
def test_recomputation_continues_with_the_same_tokens(
    runner: ModelRunner, params: SamplingParams, num_kept: int
) -> None:
    (prompt,) = prompts([20])
    (whole,) = tokens_of(run_jobs(runner, [Job(prompt, 30, params, seed=5)]))
    resumed = Job(prompt + whole[:num_kept], 30 - num_kept, params, seed=5, num_prompt=20)
    assert tokens_of(run_jobs(runner, [resumed], chunk=9)) == [whole[num_kept:]]


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch(runner: ModelRunner) -> None:
    jobs = [Job(prompt, 24, SAMPLED, seed=seed) for seed, prompt in enumerate(prompts([9] * 16))]
    together = tokens_of(run_jobs(runner, jobs))
    assert [tokens_of(run_jobs(runner, [job]))[0] for job in jobs[::5]] == together[::5]


def test_seeds_differ(runner: ModelRunner) -> None:
    (prompt,) = prompts([9])
    jobs = [Job(prompt, 24, SAMPLED, seed=seed) for seed in range(8)]
    assert len({tuple(tokens) for tokens in tokens_of(run_jobs(runner, jobs))}) == 8


@pytest.mark.parametrize("chunk", [4, 100])
def test_prompt_logprobs_are_those_of_transformers(
    model: tuple[Path, Any], runner: ModelRunner, chunk: int
) -> None:
    (prompt,) = prompts([21])
    params = SamplingParams(temperature=0.0, prompt_logprobs=3)
    (outcome,) = run_jobs(runner, [Job(prompt, 2, params)], chunk=chunk)
    with torch.inference_mode():
        expected = model[1](torch.tensor([prompt])).logits[0].log_softmax(-1)
    found = {
        part.first_position + offset: position
        for result in outcome.results
        for part in result.prompt_logprobs
        for offset, position in enumerate(part.positions)
    }
    assert sorted(found) == list(range(1, 21))
    for position, logprobs in found.items():
        row = expected[position - 1]
        assert logprobs.chosen.token_id == prompt[position]
        assert logprobs.chosen.logprob == pytest.approx(float(row[prompt[position]]), abs=1e-4)
        assert [top.token_id for top in logprobs.top] == row.topk(3).indices.tolist()


def test_an_unusable_parameter_fails_its_row_alone(runner: ModelRunner) -> None:
    bad = SamplingParams(temperature=0.0, allowed_token_ids=[VOCAB_SIZE])
    good_prompt, bad_prompt = prompts([7, 7])
    alone = tokens_of(run_jobs(runner, [Job(good_prompt, 5)]))[0]
    good, failed = run_jobs(runner, [Job(good_prompt, 5), Job(bad_prompt, 5, bad)])
    assert good.token_ids == alone
    assert "allowed_token_ids" in failed.results[0].failed_rows[1]


@pytest.mark.parametrize("broken", ["prepare", "after"])
def test_a_defect_in_the_handling_of_one_rows_parameters_fails_that_row_alone(
    runner: ModelRunner, broken: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    defect = Mock(side_effect=RuntimeError("a defect"))
    biased = SamplingParams(temperature=0.0, logit_bias={3: 1.0})
    good_prompt, bad_prompt = prompts([7, 7])
    alone = tokens_of(run_jobs(runner, [Job(good_prompt, 5)]))[0]
    if broken == "prepare":
        prepare = sampler.prepare

        def prepare_others(params: SamplingParams, *rest: Any) -> Adjustments | None:
            return prepare(params, *rest) if params.logit_bias is None else defect()

        monkeypatch.setattr(sampler, "prepare", prepare_others)
    else:
        monkeypatch.setattr(Adjustments, "after", defect)
    good, failed = run_jobs(runner, [Job(good_prompt, 5), Job(bad_prompt, 5, biased)])
    assert defect.called
    assert good.token_ids == alone
    assert failed.results[0].failed_rows == {1: REQUEST_FAILED}


def start(runner: ModelRunner, prompt: list[int], blocks: list[int], **batch: Any) -> int:
    """Prefills all but the last token of the prompt into row 0; then decodes from it."""
    admitted = AdmittedRow(
        row=0,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        params=GREEDY,
        seed=0,
        block_tables=[blocks],
    )
    work = [RowWork(0, 0, len(prompt) - 1, False, "prefill")]
    runner.launch(Batch(step_id=0, admitted=[admitted], work=work)).result()
    return last_token(runner, prompt, blocks, **batch)


def last_token(runner: ModelRunner, prompt: list[int], blocks: list[int], **batch: Any) -> int:
    admitted = AdmittedRow(
        row=0,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        params=GREEDY,
        seed=0,
        block_tables=[blocks],
    )
    work = [RowWork(0, len(prompt) - 1, 1, True, "prefill")]
    step = Batch(step_id=1, admitted=[admitted], work=work, **batch)
    return runner.launch(step).result().sampled[0].token_id


def test_a_copied_block_serves_like_the_original(runner: ModelRunner) -> None:
    (prompt,) = prompts([12])
    expected = start(runner, prompt, [1])
    assert last_token(runner, prompt, [2], copies=[BlockCopy(1, 2)]) == expected


def test_a_block_swapped_out_and_in_again_serves_like_the_original(runner: ModelRunner) -> None:
    (prompt,) = prompts([12])
    expected = start(runner, prompt, [1])
    assert runner.num_host_blocks >= 4
    runner.launch(Batch(step_id=2, swap_out=[BlockCopy(1, 3)])).result()
    other = prompts([30])[0]
    start(runner, other, [1, 2])
    assert last_token(runner, prompt, [5], swap_in=[BlockCopy(3, 5)]) == expected


def test_a_prefill_of_one_token_is_no_decode(runner: ModelRunner) -> None:
    """The tail of a prefill may have one token and share the step with decodes."""
    long_prompt, short_prompt = prompts([17, 3])
    jobs = [Job(long_prompt, 4), Job(short_prompt, 12)]
    assert tokens_of(run_jobs(runner, jobs, chunk=8)) == [
        tokens_of(run_jobs(runner, [job]))[0] for job in jobs
    ]


def test_window_layers_do_not_shorten_the_context(tmp_path: Path) -> None:
    """Five window layers to a full one: each of the five keeps three pages, 16 are the full one's,
    one is nobody's."""
    kinds = [*["sliding_attention"] * 5, "full_attention"]
    save_tiny("gemma3_text", tmp_path, num_hidden_layers=6, layer_types=kinds)
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(tmp_path), device="cpu"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=32 * 4096 / 2**30),
        )
    )
    assert [group.window for group in runner.kv_groups] == [20] * 5 + [None]
    assert runner.info.num_blocks == 32
    assert runner.info.max_model_len == 256
    runner.close()
