"""What a running engine must not do: wait for the device between decode steps, or take memory."""

from pathlib import Path

import pytest
import torch
from tests.engine.tiny_models import prompts, save_tiny
from tests.gpu.gpu_engine import generate, greedy, make_core, make_runner

from octavo_engine.batch import AdmittedRow, Batch, RowWork
from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.cuda.runner import CudaRunner
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("llama")
    save_tiny("llama", path)
    return path


def _admit(runner: CudaRunner, num_rows: int, params: SamplingParams) -> None:
    admitted = [
        AdmittedRow(
            row=row, token_ids=[5] * 9, num_prompt_tokens=9, params=params, seed=row,
            block_tables=[list(range(1 + 8 * row, 9 + 8 * row))],
        )
        for row in range(num_rows)
    ]  # fmt: skip
    work = [RowWork(row, 0, 9, True, "prefill") for row in range(num_rows)]
    runner.launch(Batch(step_id=0, admitted=admitted, work=work)).result()


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_decode_step_never_waits_for_the_device(folder: Path, temperature: float) -> None:
    runner = make_runner(folder, dtype=torch.float32)
    _admit(runner, 5, SamplingParams(temperature=temperature, top_p=0.9))
    handles = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(20):
            work = [RowWork(row, 9 + step, 1, True, "decode") for row in range(5)]
            handles.append(runner.launch(Batch(step_id=step + 1, work=work)))
            if len(handles) > 1:
                assert len(handles.pop(0).result().sampled) == 5
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("captures", [True, False], ids=["captured", "eager"])
@pytest.mark.parametrize("samples", [True, False], ids=["whole prompt", "chunk"])
def test_a_mixed_step_never_waits_for_the_device(
    folder: Path, captures: bool, samples: bool
) -> None:
    runner = make_runner(folder, dtype=torch.float32, captures=captures)
    _admit(runner, 4, SamplingParams(temperature=0.0))
    admitted = AdmittedRow(
        row=6, token_ids=[7] * 30, num_prompt_tokens=30, params=SamplingParams(temperature=0.0),
        seed=0, block_tables=[list(range(90, 98))],
    )  # fmt: skip
    work = [RowWork(row, 9, 1, True, "decode") for row in range(4)]
    work.append(RowWork(6, 0, 30, samples, "prefill"))
    torch.cuda.set_sync_debug_mode("error")
    try:
        handle = runner.launch(Batch(step_id=1, admitted=[admitted], work=work))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(handle.result().sampled) == 4 + samples


def test_decode_takes_no_memory(folder: Path) -> None:
    core = make_core(make_runner(folder, dtype=torch.float32))
    generate(core, prompts([9, 12, 30]), greedy(20))
    before = torch.cuda.memory_reserved()
    for _ in range(3):
        generate(core, prompts([9, 12, 30]), greedy(60))
    assert torch.cuda.memory_reserved() == before


def test_the_engine_stays_within_its_share_of_the_memory(folder: Path) -> None:
    total = torch.cuda.mem_get_info()[1]
    runner = build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cuda", max_model_len=256),
            cache=CacheSettings(gpu_memory_utilization=0.5),
            scheduler=SchedulerSettings(max_num_seqs=64),
        )
    )
    core = make_core(runner)
    generate(core, prompts([100, 200, 50]), greedy(40))
    free_after, _ = torch.cuda.mem_get_info()
    used = total - free_after
    assert used <= 0.5 * total
    assert used >= 0.47 * total, "pages fill the share"
