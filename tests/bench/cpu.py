"""Offline throughput on a CPU beside transformers: the same ids, greedy, everything in one run.

    python -m tests.bench.cpu [MODEL_DIR] [--trace CSV] [--output FILE]

The model is SmolLM2-135M-Instruct unless a folder is given. Work "square" is 16 requests of 128
tokens in and 128 out. Work "azure" is the first 64 rows of a trace of real lengths (a CSV with
columns TIMESTAMP, ContextTokens, GeneratedTokens), prompts clipped to 768 tokens and outputs to
256, all present at the start. Without a trace the 64 lengths are the quantiles of lognormals fitted
to the first 64 rows of Azure's conversation trace of 2023, and the output says so. "square" takes
seconds, in which a virtual machine may be half as fast as before: of each engine the median of
several runs counts, and all are told. Prints output tokens per second and their ratios, and writes
them as JSON. Run it alone on the machine.
"""

import argparse
import csv
import json
import math
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import torch
from tests.tools.smollm2 import smollm2_folder

from octavo_engine import LLM, SamplingParams

STATIC_BATCH = 16
MAX_MODEL_LEN = 2048
NUM_AZURE = 64
NUM_RUNS = {"square": 5, "azure": 1}
MAX_PROMPT, MAX_NEW = 768, 256
PROMPT_LOG_LENGTHS = NormalDist(5.873, 1.125)
NEW_LOG_LENGTHS = NormalDist(4.558, 0.851)
"""Fitted to the natural logarithms of the trace's lengths; the two do not correlate (0.07)."""


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    num_new: int


@dataclass(frozen=True)
class Measurement:
    work: str
    engine: str
    output_tokens: int
    seconds: float
    """The median of `runs_s`."""
    runs_s: list[float]
    tokens_per_s: float


def square_jobs() -> list[Job]:
    return _jobs([(128, 128)] * 16)


def azure_jobs(trace: Path | None) -> list[Job]:
    lengths = _fitted_lengths() if trace is None else _traced_lengths(trace)
    return _jobs([(min(n, MAX_PROMPT), max(1, min(m, MAX_NEW))) for n, m in lengths])


def _traced_lengths(trace: Path) -> list[tuple[int, int]]:
    with trace.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[:NUM_AZURE]
    return [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in rows]


def _fitted_lengths() -> list[tuple[int, int]]:
    """The same on every machine: quantiles, each column shuffled by a seed of its own."""
    columns = []
    for seed, logs in enumerate((PROMPT_LOG_LENGTHS, NEW_LOG_LENGTHS)):
        lengths = [
            round(math.exp(logs.inv_cdf((idx + 0.5) / NUM_AZURE))) for idx in range(NUM_AZURE)
        ]
        random.Random(seed).shuffle(lengths)
        columns.append(lengths)
    return list(zip(*columns, strict=True))


def _jobs(lengths: list[tuple[int, int]]) -> list[Job]:
    rng = random.Random(0)
    return [Job([rng.randrange(1000, 40000) for _ in range(n)], m) for n, m in lengths]


def measure_octavo(llm: LLM, work: str, jobs: list[Job]) -> Measurement:
    params = [
        SamplingParams(temperature=0.0, max_tokens=job.num_new, ignore_eos=True) for job in jobs
    ]

    def once() -> None:
        outputs = llm.generate([job.prompt for job in jobs], params, use_tqdm=False)
        made = [len(output.outputs[0].token_ids) for output in outputs]
        assert made == [job.num_new for job in jobs]

    return _measurement(work, "octavo", jobs, [_seconds(once) for _ in range(NUM_RUNS[work])])


def measure_transformers(model: Any, work: str, jobs: list[Job]) -> Measurement:
    """Static batches, prompts padded on the left, each batch running to its longest output."""

    def once() -> None:
        for first in range(0, len(jobs), STATIC_BATCH):
            _generate(model, jobs[first : first + STATIC_BATCH])

    runs_s = [_seconds(once) for _ in range(NUM_RUNS[work])]
    return _measurement(work, f"transformers, static {STATIC_BATCH}", jobs, runs_s)


def measure_one_by_one(model: Any, work: str, jobs: list[Job]) -> Measurement:
    def once() -> None:
        for job in jobs:
            _generate(model, [job])

    return _measurement(work, "transformers, one by one", jobs, [_seconds(once)])


def _seconds(act: Callable[[], None]) -> float:
    start = time.perf_counter()
    act()
    return time.perf_counter() - start


def _generate(model: Any, jobs: list[Job]) -> None:
    longest = max(len(job.prompt) for job in jobs)
    num_new = max(job.num_new for job in jobs)
    pads = [longest - len(job.prompt) for job in jobs]
    ids = torch.tensor([[0] * pad + job.prompt for pad, job in zip(pads, jobs, strict=True)])
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in pads])
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            pad_token_id=0,
        )


def _measurement(work: str, engine: str, jobs: list[Job], runs_s: list[float]) -> Measurement:
    num_tokens, seconds = sum(job.num_new for job in jobs), median(runs_s)
    rate = round(num_tokens / seconds, 1)
    told = " ".join(f"{run_s:.1f}" for run_s in runs_s)
    print(f"{work:8} {engine:26} {num_tokens:6} tokens {rate:8.1f}/s   in {told} s", flush=True)
    rounded = [round(run_s, 2) for run_s in runs_s]
    return Measurement(work, engine, num_tokens, round(seconds, 2), rounded, rate)


def run(args: argparse.Namespace) -> list[Measurement]:
    from transformers import AutoModelForCausalLM

    works = {"square": square_jobs(), "azure": azure_jobs(args.trace)}
    print(f"azure: lengths {_azure_source(args.trace)}", flush=True)
    measured = []
    with LLM(
        str(args.model),
        dtype=args.dtype,
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=args.max_num_seqs,
        prefix_caching=False,
        device="cpu",
    ) as llm:
        llm.generate([works["square"][0].prompt[:8]], SamplingParams(max_tokens=4), use_tqdm=False)
        for name, jobs in works.items():
            measured.append(measure_octavo(llm, name, jobs))
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=getattr(torch, args.dtype))
    model.eval()
    _generate(model, [Job(works["square"][0].prompt[:8], 4)])
    for name, jobs in works.items():
        measured.append(measure_transformers(model, name, jobs))
    measured.append(measure_one_by_one(model, "square", works["square"][: args.sequential]))
    return measured


def _azure_source(trace: Path | None) -> str:
    return "of a lognormal fit to the trace (none was given)" if trace is None else f"of {trace}"


def ratios(measured: list[Measurement]) -> dict[str, float]:
    """octavo's output tokens per second over each other engine's, by work and engine."""
    ours = {m.work: m.tokens_per_s for m in measured if m.engine == "octavo"}
    return {
        f"{m.work} over {m.engine}": round(ours[m.work] / m.tokens_per_s, 2)
        for m in measured
        if m.engine != "octavo"
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?", help="a Hugging Face folder")
    parser.add_argument("--trace", type=Path, help="CSV of real lengths for the work azure")
    parser.add_argument("--output", type=Path, default=Path("bench-cpu.json"))
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--max-num-seqs", type=int, default=32)
    parser.add_argument("--sequential", type=int, default=4, help="requests run one by one")
    args = parser.parse_args()
    if args.model is None:
        args.model = smollm2_folder()
    measured = run(args)
    found = ratios(measured)
    for name, ratio in found.items():
        print(f"{name:40} {ratio:6.2f}x")
    report = {
        "torch": torch.__version__,
        "num_threads": torch.get_num_threads(),
        "dtype": args.dtype,
        "azure_lengths": _azure_source(args.trace),
        "measurements": [asdict(m) for m in measured],
        "ratios": found,
    }
    args.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
