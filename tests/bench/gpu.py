"""The engine on a GPU, offline: `python -m tests.bench.gpu` prints a table and appends to a CSV.

    decode       ms a step of the steps in which every row decodes and none has a prompt left,
                 scheduler included
    device       ms a step between the marks of the device, host excluded
    start        seconds from a process's start to its first token
    throughput   output or prompt tokens a second of a whole workload, all requests at the start
    attention    one layer's attention by itself, on pages that no cache holds

Weights are random numbers made on the GPU; nothing is tokenised. Beside each figure stand vLLM
0.26.0's on an H200 (another machine: they differ by up to 11 %) and the goal.
"""

import argparse
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

from tests.bench.gpu_dummy import make_core
from tests.bench.gpu_rows import Row, append_rows, print_row
from tests.bench.gpu_startup import starts
from tests.bench.gpu_workloads import MODELS, Job, fixed, mixed, shared_prefix
from tests.bench.kernels.harness import measure
from tests.bench.kernels.paged_attention import decode, prefill, step_case, step_flops

from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import SamplingParams

RESULTS = Path(__file__).parent / "results" / "h200_engine.csv"
PAGE = 64
DECODE_ROWS = [(1, 4.92, 3.95), (32, 5.55, 4.6), (128, 7.18, 6.2), (256, 11.12, 9.5)]
"""Batch, vLLM's ms a step, the goal."""


def run(core: EngineCore, jobs: list[Job]) -> float:
    """Seconds from the first submit to the last token."""
    tag = f"{perf_counter()}"
    started_s = perf_counter()
    for idx, job in enumerate(jobs):
        params = SamplingParams(temperature=0.0, max_tokens=job.num_new, ignore_eos=True)
        core.submit(
            EngineRequest(request_id=f"{tag}-{idx}", prompt_token_ids=job.prompt, params=params)
        )
    num_tokens = 0
    while core.has_work:
        for delta in core.step():
            num_tokens += len(delta.token_ids)
    seconds = perf_counter() - started_s
    expected = sum(job.num_new for job in jobs)
    if num_tokens != expected:
        raise RuntimeError(f"{num_tokens} tokens came, {expected} were asked for")
    return seconds


def decode_ms(core: EngineCore, jobs: list[Job]) -> float:
    """Milliseconds a step from when the last prompt is done until the first request has ended."""
    params = SamplingParams(temperature=0.0, max_tokens=jobs[0].num_new, ignore_eos=True)
    tag = f"{perf_counter()}"
    for idx, job in enumerate(jobs):
        core.submit(
            EngineRequest(request_id=f"{tag}-{idx}", prompt_token_ids=job.prompt, params=params)
        )
    counts: dict[str, int] = {}
    first_s = last_s = 0.0
    first_count = last_count = 0
    while core.has_work:
        deltas = core.step()
        now_s = perf_counter()
        for delta in deltas:
            counts[delta.request_id] = counts.get(delta.request_id, 0) + len(delta.token_ids)
        furthest = max(counts.values(), default=0)
        if not first_count and len(counts) == len(jobs):
            first_s, first_count = now_s, furthest
        if not last_count and furthest == jobs[0].num_new:
            last_s, last_count = now_s, furthest
    return (last_s - first_s) / (last_count - first_count) * 1e3


class DeviceTimes:
    """Passes a runner's steps on and notes how long each took on the device.

    Of a step its two marks alone are kept: tokens and pinned buffers of thousands of steps would be
    a load on the collector and the host's memory that the product does not have.
    """

    def __init__(self, core: EngineCore) -> None:
        self._runner = core._runner
        self._marks: list[tuple[Any, Any]] = []
        core._runner = self  # type: ignore[assignment]  # stands between the core and its runner

    def launch(self, batch: Any) -> Any:
        handle = self._runner.launch(batch)
        self._note(handle)
        return handle

    def _note(self, handle: Any) -> None:
        self._marks.append((handle.started, handle.ended))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def take(self) -> tuple[list[float], list[float]]:
        """Milliseconds of each step, and of each gap between two steps, since the last call."""
        marks, self._marks = self._marks, []
        steps = [ended.seconds_since(started) * 1e3 for started, ended in marks]
        gaps = [after.seconds_since(before) * 1e3 for (_, before), (after, _) in pairwise(marks)]
        return steps, gaps


def decode_rows(
    core: EngineCore,
    times: DeviceTimes,
    batch: int,
    *,
    num_in: int = 128,
    num_out: int = 257,
    reps: int = 2,
    vllm: float | None,
    goal: float | None,
) -> Iterable[Row]:
    times.take()
    ms = min(
        decode_ms(core, fixed(batch, num_in, num_out, 200 + 7 * rep + batch)) for rep in range(reps)
    )
    steps, gaps = times.take()
    case = f"decode batch {batch} at {num_in}"
    yield Row(case, ms, "ms/step", vllm, goal)
    tail = slice(len(steps) // 2, None)
    yield Row(f"{case}, device", statistics.median(steps[tail]), "ms/step")
    yield Row(f"{case}, gap", statistics.median(gaps[tail]) * 1e3, "us/step", None, 50)


def throughput_row(
    core: EngineCore,
    case: str,
    jobs: list[Job],
    vllm: float | None,
    goal: float | None,
    *,
    of_prompt: bool,
) -> Row:
    seconds = run(core, jobs)
    tokens = sum(len(job.prompt) if of_prompt else job.num_new for job in jobs)
    unit = "prompt tok/s" if of_prompt else "output tok/s"
    return Row(case, tokens / seconds, unit, vllm, goal)


def llama_rows(suite: str) -> Iterable[Row]:
    core, _ = make_core(
        MODELS["llama8b"], max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192
    )
    times = DeviceTimes(core)
    run(core, fixed(64, 100, 16, 999))
    run(core, fixed(4, 2000, 8, 998))
    yield throughput_row(core, "mixed1000", mixed(1000, 0), 9600, 12000, of_prompt=False)
    times.take()
    for batch, vllm, goal in DECODE_ROWS:
        yield from decode_rows(core, times, batch, vllm=vllm, goal=goal)
    if suite == "quick":
        return
    yield throughput_row(
        core, "256 x 1024 in 256 out", fixed(256, 1024, 256, 1), 6170, 6900, of_prompt=False
    )
    yield throughput_row(
        core, "prefill 64 x 4096", fixed(64, 4096, 1, 3), 41000, 43000, of_prompt=True
    )
    yield throughput_row(
        core, "shared prefix 256 x 1024+32", shared_prefix(256, 1024, 32, 64, 0), 12400, 14000,
        of_prompt=False,
    )  # fmt: skip
    times.take()
    yield from decode_rows(core, times, 64, num_in=4096, num_out=129, reps=1, vllm=13.0, goal=12.2)
    yield from decode_rows(core, times, 1, num_in=7900, num_out=129, reps=1, vllm=5.26, goal=4.25)


QUANTIZED: dict[str, tuple[Row, list[tuple[int, float | None, float | None]]]] = {
    "int4": (
        Row("mixed1000", 0.0, "output tok/s", 10285, 11500),
        [(1, 3.29, 2.3), (32, 4.28, 3.25), (128, 7.29, None)],
    ),
    "fp8": (
        Row("mixed1000", 0.0, "output tok/s", 12816, 15380),
        [(1, 3.67, 2.75), (32, 4.58, 3.6), (128, 7.18, None)],
    ),
    "int8": (
        Row("mixed1000", 0.0, "output tok/s"),
        [(1, None, None), (32, None, None), (128, None, None)],
    ),
}
"""vLLM's best figure of each (Machete, Marlin, Cutlass; none was taken of int8) and the goal."""


def quantized_rows(suite: str, quantization: str) -> Iterable[Row]:
    """Llama-3.1-8B's shape with quantised products; the head stays in bfloat16."""
    core, _ = make_core(
        MODELS["llama8b"], max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192,
        quantization=quantization,
    )  # fmt: skip
    times = DeviceTimes(core)
    run(core, fixed(64, 100, 16, 999))
    run(core, fixed(4, 2000, 8, 998))
    whole, decodes = QUANTIZED[quantization]
    yield throughput_row(
        core, f"{quantization} mixed1000", mixed(1000, 0), whole.vllm, whole.goal, of_prompt=False
    )
    times.take()
    for batch, vllm, goal in decodes[: 2 if suite == "quick" else None]:
        for row in decode_rows(core, times, batch, vllm=vllm, goal=goal):
            yield replace(row, case=f"{quantization} {row.case}")


def narrow_pages_rows(suite: str) -> Iterable[Row]:
    """Keys and values in 8 bits; vLLM's figures and the goals are those of 16."""
    core, _ = make_core(
        MODELS["llama8b"], max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192,
        kv_cache_dtype="fp8",
    )  # fmt: skip
    times = DeviceTimes(core)
    run(core, fixed(64, 100, 16, 999))
    run(core, fixed(4, 2000, 8, 998))
    info = core._runner.info
    yield Row("kv fp8 pages", info.num_blocks * info.block_size, "tokens")
    jobs = mixed(1000, 0)
    yield throughput_row(core, "kv fp8 mixed1000", jobs, 9600, 12000, of_prompt=False)
    times.take()
    for batch, num_in, num_out, vllm, goal in (
        (256, 128, 257, 11.12, 9.5),
        (64, 4096, 129, 13.0, 12.2),
        (1, 7900, 129, 5.26, 4.25),
    ):
        for row in decode_rows(
            core, times, batch, num_in=num_in, num_out=num_out, reps=1, vllm=vllm, goal=goal
        ):
            yield replace(row, case=f"kv fp8 {row.case}")
    if suite == "quick":
        return
    jobs = fixed(64, 4096, 1, 3)
    yield throughput_row(core, "kv fp8 prefill 64 x 4096", jobs, 41000, 43000, of_prompt=True)


ATTENTION_ROWS = [
    (decode(32, 2048), 73, 65),
    (decode(32, 8192), 248, 250),
    (decode(256, 2048), 502, 480),
]
"""Step, FlashAttention 3's microseconds, the goal."""


def attention_rows(suite: str) -> Iterable[Row]:
    for step, vllm, goal in ATTENTION_ROWS:
        timing = measure(step_case(step, PAGE))
        yield Row(f"attention alone, {step.name}", timing.us, "us", vllm, goal)
    step = prefill(1, 8192, 8192)
    timing = measure(step_case(step, PAGE))
    rate = step_flops(step) / timing.us / 1e6
    yield Row(f"attention alone, {step.name}", rate, "TFLOP/s", 649, 650)


START_UP_GOALS = {"cold": (77.0, 25.0), "warm": (49.0, 9.0), "warm again": (49.0, 9.0)}
"""vLLM's seconds, the goal's."""


def startup_rows(suite: str) -> Iterable[Row]:
    for name, seconds in starts("llama8b"):
        yield Row(f"start to first token, {name}", seconds, "s", *START_UP_GOALS[name])


def qwen_rows(suite: str) -> Iterable[Row]:
    core, _ = make_core(
        MODELS["qwen06b"], max_num_seqs=1024, max_num_batched_tokens=8192, max_model_len=8192
    )
    run(core, fixed(64, 100, 16, 999))
    case = "qwen3-0.6b mixed1000"
    yield throughput_row(core, case, mixed(1000, 0), 15900, 28000, of_prompt=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=["quick", "full"], default="full")
    models = ["startup", "attention", "llama", "qwen", "all", "kv8", *QUANTIZED]
    parser.add_argument("--model", choices=models, default="all")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    suites: dict[str, Callable[[str], Iterable[Row]]] = {
        "startup": startup_rows,
        "attention": attention_rows,
        "llama": llama_rows,
        "qwen": qwen_rows,
    }
    unquantized = list(suites)
    suites["kv8"] = narrow_pages_rows
    suites |= {name: partial(quantized_rows, quantization=name) for name in QUANTIZED}
    chosen = unquantized if arguments.model == "all" else [arguments.model]
    for name in chosen:
        make_rows = suites[name]
        rows = []
        for row in make_rows(arguments.suite):
            print_row(row)
            rows.append(row)
        append_rows(arguments.out, rows)


if __name__ == "__main__":
    main()
