"""One model on two GPUs: `python -m tests.bench.gpu_ranks` prints a table and appends to a CSV.

First tiny models on 1 and on 2 ranks, whose tokens must agree, then milliseconds a decode step of
a model with random weights and its throughput. Needs two GPUs of one host and starts its ranks
itself. Figures of vLLM 0.26.0 and goals are those for two H200s.
"""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from tests.bench.gpu import (
    DeviceTimes,
    Row,
    append_rows,
    decode_rows,
    print_row,
    run,
    throughput_row,
)
from tests.bench.gpu_dummy import write_config
from tests.bench.gpu_workloads import LLAMA_8B, fixed, mixed
from tests.engine.runner_driver import Job, Outcome, run_jobs
from tests.engine.tiny_models import prompts, save_tiny

from octavo_engine.batch import Runner
from octavo_engine.config import (
    CacheSettings,
    DType,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.core.engine import EngineCore
from octavo_engine.parallel.driver import build_parallel_runner
from octavo_engine.progress import silent
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams

RESULTS = Path(__file__).parent / "results" / "h200_ranks.csv"
LLAMA_70B: dict[str, Any] = LLAMA_8B | {
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "intermediate_size": 28672,
}
DECODES: dict[str, list[tuple[int, float, float | None]]] = {
    "llama8b": [(1, 3.47, 2.6), (32, 4.01, 3.2), (128, 4.92, 4.2)],
    "llama70b": [(1, 21.2, 18.5), (32, 22.3, 20.0)],
}
"""Batch, vLLM's ms a step, the goal."""
MIXED = {"llama8b": (16156.0, 19387.0), "llama70b": (2782.0, 3000.0)}
SHAPES = {"llama8b": LLAMA_8B, "llama70b": LLAMA_70B}

TINY = {"head_dim": 64, "hidden_size": 256, "intermediate_size": 512}
DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
FAMILIES = ["llama", "qwen3", "gemma2", "phi3", "olmo2"]
NUM_NEW = 24
NUM_TOP = 20


class Rank0Times(DeviceTimes):
    """Of rank 0's own steps."""

    def launch(self, batch: Any) -> Any:
        handle = self._runner.launch(batch)
        self._handles.append(getattr(handle, "local", handle))
        return handle


@contextmanager
def runner_of(config: EngineConfig) -> Iterator[Runner]:
    if config.parallel.tensor_parallel_size > 1:
        runner: Runner = build_parallel_runner(config, None, silent, "console")
    else:
        runner = build_runner(config)
    try:
        yield runner
    finally:
        runner.close()


def parity_rows() -> Iterable[Row]:
    """Tokens before the first that differs, of all; and how far the first logprobs are apart.

    In float32 all tokens must be equal. In bfloat16, whose sums take another way, models as rough
    as these differ by a few of the last bits that bfloat16 has for a logit.
    """
    params = SamplingParams(temperature=0.0, logprobs=NUM_TOP)
    jobs = [Job(prompt, NUM_NEW, params) for prompt in prompts([5, 24, 70])]
    for family, dtype in product(FAMILIES, DTYPES):
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(family, Path(folder), **TINY)
            one, two = (_outcomes(folder, dtype, num_ranks, jobs) for num_ranks in (1, 2))
        equal = sum(_num_equal(a.token_ids, b.token_ids) for a, b in zip(one, two, strict=True))
        share = equal / (NUM_NEW * len(jobs))
        yield Row(f"{family} {dtype}, equal tokens", share, "share")
        apart = max(_apart(one[0].results[0], two[0].results[0]))
        yield Row(f"{family} {dtype}, first logprobs apart", apart, "nats")
        if dtype == "float32" and share < 1:
            raise SystemExit(f"{family}: two ranks give other tokens than one")


def _outcomes(folder: str, dtype: DType, num_ranks: int, jobs: list[Job]) -> list[Outcome]:
    config = EngineConfig(
        model=ModelSettings(path=folder, device="cuda", dtype=dtype),
        cache=CacheSettings(block_size=16, gpu_memory_utilization=0.1),
        scheduler=SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=512),
        parallel=ParallelSettings(tensor_parallel_size=num_ranks),
    )
    try:
        with runner_of(config) as runner:
            outcomes = run_jobs(runner, jobs)
        del runner
        return outcomes
    finally:
        # The next runner counts what is allocated as its weights.
        gc.collect()
        torch.cuda.empty_cache()


def _num_equal(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=True)
    return next((idx for idx, (a, b) in enumerate(pairs) if a != b), len(one))


def _apart(one: Any, other: Any) -> Iterable[float]:
    for a, b in zip(one.sampled, other.sampled, strict=True):
        known = {token.token_id: token.logprob for token in b.logprobs.top}
        yield from (
            abs(token.logprob - known[token.token_id])
            for token in a.logprobs.top
            if token.token_id in known
        )


def step_rows(model: str, num_ranks: int) -> Iterable[Row]:
    scheduler = SchedulerSettings(
        max_num_seqs=1024, max_num_batched_tokens=8192, max_queued_requests=100_000
    )
    config = EngineConfig(
        model=ModelSettings(
            path=str(write_config(SHAPES[model])),
            device="cuda",
            load_format="dummy",
            max_model_len=8192,
        ),
        scheduler=scheduler,
        parallel=ParallelSettings(tensor_parallel_size=num_ranks),
    )
    with runner_of(config) as runner:
        core = EngineCore(runner, scheduler)
        run(core, fixed(64, 100, 16, 999))
        run(core, fixed(4, 2000, 8, 998))
        times = Rank0Times(core)
        for batch, vllm, goal in DECODES[model]:
            for row in decode_rows(core, times, batch, vllm=vllm, goal=goal):
                yield replace(row, case=f"{model}, {num_ranks} ranks, {row.case}")
        vllm, goal = MIXED[model]
        jobs = mixed(1000, 0)
        case = f"{model}, {num_ranks} ranks, mixed1000"
        yield throughput_row(core, case, jobs, vllm, goal, of_prompt=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parity", action="store_true", help="only the tiny models")
    parser.add_argument("--model", choices=[*SHAPES, "both"], default="llama8b")
    parser.add_argument("--ranks", type=int, default=2)
    folder = os.environ.get("OUT")
    default = RESULTS if folder is None else Path(folder) / "gpu_ranks.csv"
    parser.add_argument("--out", type=Path, default=default)
    arguments = parser.parse_args()
    rows = parity_rows()
    if not arguments.parity:
        models = list(SHAPES) if arguments.model == "both" else [arguments.model]
        rows = (row for model in models for row in step_rows(model, arguments.ranks))
    for row in rows:
        print_row(row)
        append_rows(arguments.out, [row])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
