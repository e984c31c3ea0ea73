"""Step times by what is in a step: `python -m tests.bench.gpu_steps` writes results/h200_steps.csv.

The table from which a model of the engine's time can be made. Batches go straight to the runner.
Tokens and pages are random: equal tokens over zeros take less power, and with it a fifth less time
at 256 rows. Times are the device's, without the host.
"""

import argparse
import csv
import datetime
import statistics
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tests.bench.gpu_dummy import commit_of_checkout, make_core
from tests.bench.gpu_workloads import MODELS

from octavo_engine.batch import AdmittedRow, Batch, RowWork
from octavo_engine.cuda.runner import CudaRunner
from octavo_engine.sampling_params import SamplingParams

RESULTS = Path(__file__).parent / "results" / "h200_steps.csv"
FIELDS = [
    "date", "gpu", "torch", "commit", "model", "num_decodes", "context_len", "num_prefill_tokens",
    "prompt_len", "ms",
]  # fmt: skip
NUM_DECODES = (1, 8, 32, 64, 128, 256, 512, 1024)
CONTEXTS = (128, 1024, 4096)
PROMPTS = ((512, 512), (2048, 512), (2048, 2048), (8192, 512), (8192, 8192))
"""(prefill tokens of the step, tokens of each prompt)."""
NUM_REPEATS = 9
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True)
class Composition:
    num_decodes: int
    context_len: int
    num_prefill_tokens: int
    prompt_len: int

    @property
    def num_prompts(self) -> int:
        return self.num_prefill_tokens // self.prompt_len if self.prompt_len else 0


def compositions() -> list[Composition]:
    decodes = [Composition(num, length, 0, 0) for num in NUM_DECODES for length in CONTEXTS]
    prefills = [Composition(0, 0, tokens, length) for tokens, length in PROMPTS]
    mixed = [
        Composition(num, 1024, tokens, 512) for num in (32, 256) for tokens in (512, 2048, 8192)
    ]
    return [*decodes, *prefills, *mixed]


def step_ms(runner: CudaRunner, case: Composition) -> float:
    """Median of several such steps on the device."""
    lens = [case.context_len] * case.num_decodes + [case.prompt_len] * case.num_prompts
    runner.launch(Batch(step_id=0, admitted=_rows(runner, lens))).result()
    handles = []
    for repeat in range(NUM_REPEATS):
        work = [
            RowWork(row, case.context_len + repeat, 1, True, "decode")
            for row in range(case.num_decodes)
        ]
        work += [
            RowWork(row, 0, case.prompt_len, True, "prefill")
            for row in range(case.num_decodes, len(lens))
        ]
        handles.append(runner.launch(Batch(step_id=repeat + 1, work=work)))
        if len(handles) > 1:
            handles[-2].result()
    handles[-1].result()
    released = list(range(len(lens)))
    runner.launch(Batch(step_id=0, released_rows=released)).result()
    return statistics.median(handle.result().duration_s for handle in handles[2:]) * 1e3


def _rows(runner: CudaRunner, lens: list[int]) -> list[AdmittedRow]:
    """Each row on pages of its own, as far as there are enough."""
    info, first = runner.info, 0
    generator = np.random.default_rng(len(lens))
    rows = []
    for row, length in enumerate(lens):
        num_blocks = -(-(length + NUM_REPEATS) // info.block_size)
        table = [1 + (first + idx) % (info.num_blocks - 1) for idx in range(num_blocks)]
        first += num_blocks
        rows.append(
            AdmittedRow(
                row=row,
                token_ids=generator.integers(info.vocab_size, size=length).tolist(),
                num_prompt_tokens=length,
                params=GREEDY,
                seed=0,
                block_tables=[table for _ in runner.kv_groups],
            )
        )
    return rows


@torch.inference_mode()
def fill_pages(runner: CudaRunner) -> None:
    for layer in runner._cache.layers:
        layer.k.normal_()
        layer.v.normal_()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="llama8b")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    core, _ = make_core(
        MODELS[arguments.model],
        max_num_seqs=1024,
        max_num_batched_tokens=10240,
        max_model_len=8320,
    )
    runner = core._runner
    assert isinstance(runner, CudaRunner)
    fill_pages(runner)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    is_new = not arguments.out.exists()
    with arguments.out.open("a", newline="") as file:
        writer = csv.writer(file)
        if is_new:
            writer.writerow(FIELDS)
        date = datetime.datetime.now(datetime.UTC).date().isoformat()
        for case in compositions():
            ms = step_ms(runner, case)
            print(
                f"{case.num_decodes:5} decodes at {case.context_len:5}, prompts of "
                f"{case.num_prefill_tokens:5} tokens, {case.prompt_len:5} each: {ms:8.2f} ms"
            )
            writer.writerow(
                [
                    date, torch.cuda.get_device_name(), torch.__version__, commit_of_checkout(),
                    arguments.model, case.num_decodes, case.context_len, case.num_prefill_tokens,
                    case.prompt_len, f"{ms:.3f}",
                ]
            )  # fmt: skip


if __name__ == "__main__":
    main()
