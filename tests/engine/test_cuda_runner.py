"""The GPU runner's logic, run on a CPU: the same tokens as the CPU runner for the same batches.

Kernels and captures are proven on a GPU in tests/gpu; here are table, staging, padding and order.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.runner_driver import Job, run_jobs, tokens_of
from tests.engine.tiny_models import prompts, save_tiny

import octavo_kernels
from octavo_engine.batch import AdmittedRow, Batch, RowWork
from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    KVCacheDType,
    ModelSettings,
    SchedulerSettings,
)
from octavo_engine.cuda.build import LoadedModel, RunnerParts
from octavo_engine.cuda.graphs import CapturedFunction, graph_sizes
from octavo_engine.cuda.id_ring import NUM_SLOTS
from octavo_engine.cuda.memory import run_largest_step
from octavo_engine.cuda.runner import CudaRunner
from octavo_engine.layers.linear import Build
from octavo_engine.loading.model_files import load_decoder, open_model
from octavo_engine.model_config import kv_groups
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.kv_cache import PageShape
from octavo_engine.runner.sizing import Sizes
from octavo_engine.sampling_params import SamplingParams
from octavo_kernels import SamplingTensors

CPU = torch.device("cpu")
MAX_NUM_SEQS = 6
NUM_BLOCKS = 96
LENGTHS = [1, 5, 16, 33, 40]


def _config(folder: Path, kv_cache_dtype: KVCacheDType = "auto") -> EngineConfig:
    return EngineConfig(
        model=ModelSettings(path=str(folder), dtype="float32", device="cpu"),
        cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.01, kv_cache_dtype=kv_cache_dtype),
        scheduler=SchedulerSettings(max_num_seqs=MAX_NUM_SEQS),
    )


def _cuda_runner(
    folder: Path, *, has_static_decode: bool = True, kv_cache_dtype: KVCacheDType = "auto"
) -> CudaRunner:
    files = open_model(str(folder))
    config = files.model_config()
    groups = kv_groups([layer.window for layer in config.layers])
    model = load_decoder(files, config, groups, Build(CPU, torch.float32))
    shape = PageShape(
        num_kv_heads=config.num_kv_heads,
        block_size=16,
        head_dim=config.head_dim,
        dtype=torch.float32,
    )
    loaded = LoadedModel(model=model, config=config, groups=groups, shape=shape, context_len=256)
    parts = RunnerParts(_config(folder, kv_cache_dtype), loaded, CPU)
    parts.has_static_decode = parts.has_static_decode and has_static_decode
    sizes = Sizes(
        max_model_len=256, max_num_seqs=MAX_NUM_SEQS, num_blocks=NUM_BLOCKS, num_host_blocks=0
    )
    return parts.runner(sizes)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    save_tiny("llama", folder)
    return folder


@pytest.fixture(scope="module")
def gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma2")
    save_tiny("gemma2", folder)
    return folder


def _both(folder: Path, jobs: list[Job], **how: Any) -> tuple[list[list[int]], list[list[int]]]:
    found = tokens_of(run_jobs(_cuda_runner(folder), jobs, **how))
    expected = tokens_of(run_jobs(build_runner(_config(folder)), jobs, **how))
    return found, expected


def test_greedy_tokens_match_the_cpu_runner(llama: Path) -> None:
    jobs = [Job(prompt, 12) for prompt in prompts(LENGTHS)]
    found, expected = _both(llama, jobs)
    assert found == expected


def test_chunks_beside_decodes_match_the_cpu_runner(llama: Path) -> None:
    jobs = [Job(prompt, 9) for prompt in prompts(LENGTHS)]
    found, expected = _both(llama, jobs, chunk=7)
    assert found == expected


def test_two_kv_groups_with_windows_match_the_cpu_runner(gemma2: Path) -> None:
    jobs = [Job(prompt, 30) for prompt in prompts([3, 25, 38])]
    found, expected = _both(gemma2, jobs)
    assert found == expected


@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_experts_decode_as_the_cpu_runner_and_can_be_captured(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path)
    jobs = [Job(prompt, 9) for prompt in prompts([3, 25, 38])]
    found, expected = _both(tmp_path, jobs)
    assert found == expected
    # Steps with prompts, decodes, and both kinds of sampling.
    assert len(_cuda_runner(tmp_path).captured_functions()) == 4


def test_pages_of_eight_bits_match_the_cpu_runner(gemma2: Path) -> None:
    jobs = [Job(prompt, 12) for prompt in prompts([3, 25, 38])]
    found = tokens_of(run_jobs(_cuda_runner(gemma2, kv_cache_dtype="fp8"), jobs))
    expected = tokens_of(run_jobs(build_runner(_config(gemma2, "fp8")), jobs))
    assert found == expected
    assert found != tokens_of(run_jobs(build_runner(_config(gemma2)), jobs))


def test_seeded_draws_with_filters_match_the_cpu_runner(llama: Path) -> None:
    params = [
        SamplingParams(temperature=0.9, top_p=0.8),
        SamplingParams(temperature=1.3, top_k=7),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.7, min_p=0.05),
    ]
    jobs = [
        Job(prompt, 12, one, seed=2**63 - 5 - idx)
        for idx, (prompt, one) in enumerate(zip(prompts([4, 9, 17, 30]), params, strict=True))
    ]
    found, expected = _both(llama, jobs)
    assert found == expected


def test_penalties_beside_plain_rows_match_the_cpu_runner(llama: Path) -> None:
    params = [
        SamplingParams(temperature=0.0, frequency_penalty=1.5, logit_bias={5: 4.0}),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=0.8, repetition_penalty=1.4, top_k=20),
    ]
    jobs = [
        Job(prompt, 12, one, seed=3)
        for prompt, one in zip(prompts([4, 9, 17]), params, strict=True)
    ]
    found, expected = _both(llama, jobs)
    assert found == expected


def test_logprobs_come_for_the_rows_that_ask(llama: Path) -> None:
    jobs = [
        Job(prompts([9])[0], 5, SamplingParams(temperature=0.0, logprobs=3)),
        Job(prompts([12])[0], 5),
    ]
    results = run_jobs(_cuda_runner(llama), jobs)[0].results
    expected = run_jobs(build_runner(_config(llama)), jobs)[0].results
    for mine, theirs in zip(results, expected, strict=True):
        for token, reference in zip(mine.sampled, theirs.sampled, strict=True):
            assert (token.logprobs is None) == (token.row == 1)
            if token.logprobs is not None and reference.logprobs is not None:
                assert [top.token_id for top in token.logprobs.top] == [
                    top.token_id for top in reference.logprobs.top
                ]
                assert token.logprobs.chosen.logprob == pytest.approx(
                    reference.logprobs.chosen.logprob, abs=1e-5
                )


def test_prompt_logprobs_match_the_cpu_runner(llama: Path) -> None:
    jobs = [Job(prompts([21])[0], 2, SamplingParams(temperature=0.0, prompt_logprobs=2))]
    found = run_jobs(_cuda_runner(llama), jobs, chunk=8)[0].results
    expected = run_jobs(build_runner(_config(llama)), jobs, chunk=8)[0].results
    for mine, theirs in zip(found, expected, strict=True):
        for part, reference in zip(mine.prompt_logprobs, theirs.prompt_logprobs, strict=True):
            assert part.first_position == reference.first_position
            for position, wanted in zip(part.positions, reference.positions, strict=True):
                assert position.chosen.token_id == wanted.chosen.token_id
                assert position.chosen.logprob == pytest.approx(wanted.chosen.logprob, abs=1e-5)
                assert [t.token_id for t in position.top] == [t.token_id for t in wanted.top]


def test_a_step_that_never_decodes_alone_gives_the_same_tokens(llama: Path) -> None:
    jobs = [Job(prompt, 8) for prompt in prompts(LENGTHS)]
    eager = tokens_of(run_jobs(_cuda_runner(llama, has_static_decode=False), jobs))
    assert eager == tokens_of(run_jobs(_cuda_runner(llama), jobs))


def test_more_steps_than_slots_may_be_read_late(llama: Path) -> None:
    jobs = [Job(prompts([5])[0], 3 * NUM_SLOTS)]  # the driver reads all results at the end
    found, expected = _both(llama, jobs)
    assert found == expected


def test_a_row_taken_again_starts_from_its_new_sequence(llama: Path) -> None:
    runner = _cuda_runner(llama)
    first, second = prompts([30, 11])
    run_jobs(runner, [Job(first, 6, SamplingParams(temperature=1.0), seed=1)])
    runner.launch(Batch(step_id=0, released_rows=[0])).result()
    again = tokens_of(run_jobs(runner, [Job(second, 6)]))
    assert again == tokens_of(run_jobs(_cuda_runner(llama), [Job(second, 6)]))


@pytest.mark.parametrize(
    "earlier", [SamplingParams(temperature=1.0), SamplingParams(logit_bias={5: 1.0}, temperature=0)]
)
def test_a_row_taken_again_is_sampled_by_its_new_parameters_alone(
    llama: Path, earlier: SamplingParams, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A greedy row that follows another keeps the captured way."""
    runner = _cuda_runner(llama)
    first, second = prompts([12, 11])
    run_jobs(runner, [Job(first, 2, earlier)])
    runner.launch(Batch(step_id=0, released_rows=[0])).result()
    captured, num_rows_seen = runner._sample_greedy.run, []

    def run(num_rows: int) -> int:
        num_rows_seen.append(num_rows)
        return captured(num_rows)

    monkeypatch.setattr(runner._sample_greedy, "run", run)
    run_jobs(runner, [Job(second, 3)])
    assert num_rows_seen == [1, 1, 1]


def test_bad_parameters_fail_their_row_alone(llama: Path) -> None:
    runner = _cuda_runner(llama)
    bad = SamplingParams(temperature=0.0, logit_bias={5000: 1.0})
    rows = [
        AdmittedRow(
            row=row, token_ids=[5, 6], num_prompt_tokens=2, params=params, seed=0,
            block_tables=[[row + 1]],
        )
        for row, params in enumerate([bad, SamplingParams(temperature=0.0)])
    ]  # fmt: skip
    work = [RowWork(row, 0, 2, True, "prefill") for row in range(2)]
    result = runner.launch(Batch(step_id=1, admitted=rows, work=work)).result()
    assert list(result.failed_rows) == [0]
    assert "5000" in result.failed_rows[0]
    assert [token.row for token in result.sampled] == [1]


def test_the_largest_step_runs_and_leaves_the_runner_usable(llama: Path) -> None:
    runner = _cuda_runner(llama)
    run_largest_step(runner, max_step_tokens=64)
    jobs = [Job(prompt, 6) for prompt in prompts(LENGTHS)]
    assert tokens_of(run_jobs(runner, jobs)) == tokens_of(run_jobs(_cuda_runner(llama), jobs))


@pytest.mark.parametrize("max_num_rows", [1, 3, 8, 30, 256, 1000])
def test_a_graph_fits_every_number_of_rows(max_num_rows: int) -> None:
    sizes = graph_sizes(max_num_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_num_rows
    for num_rows in range(1, max_num_rows + 1):
        size = min(size for size in sizes if size >= num_rows)
        assert size - num_rows <= max(8, num_rows // 8), f"{num_rows} rows run as {size}"


def test_without_a_capture_the_function_runs_at_its_own_size() -> None:
    seen: list[int] = []
    function = CapturedFunction(seen.append, [1, 2, 4, 8])
    function.run(3)
    assert seen == [3]


def test_sampling_is_touched_in_the_type_and_sizes_of_eager_rows(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, bool, bool]] = []

    def see(
        logits: torch.Tensor, params: SamplingTensors, changes: list[None] | None = None
    ) -> None:
        assert logits.dtype == torch.float32
        seen.append((len(logits), params.all_greedy, changes is not None))

    monkeypatch.setattr(octavo_kernels, "sample", see)
    _cuda_runner(llama).touch_uncaptured()
    assert len({kind[1:] for kind in seen}) == 4  # greedy or drawing, changing logits or not
    assert seen[-1][0] == MAX_NUM_SEQS
