"""Where the time of a step goes on the GPU: `python -m tests.bench.gpu_profile --batch 1 256`.

Runs the engine with random weights under torch's profiler and prints kernels by time a step: of
decoding, each batch by itself (`--shared-prefix`: behind so many tokens that all rows share), and
of prompts.
"""

import argparse
from collections import defaultdict
from time import perf_counter

import torch
from tests.bench.gpu import QUANTIZED, run
from tests.bench.gpu_dummy import make_core
from tests.bench.gpu_workloads import MODELS, Job, fixed, shared_prefix
from torch.profiler import ProfilerActivity, profile

from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import SamplingParams

NUM_STEPS = 8
NUM_NEW = 200
PROMPTS = ((2, 4096), (8, 1024))
"""How many and how long: each a step."""


def profile_decode(core: EngineCore, title: str, jobs: list[Job]) -> None:
    for idx, job in enumerate(jobs):
        params = SamplingParams(temperature=0.0, max_tokens=job.num_new, ignore_eos=True)
        core.submit(EngineRequest(request_id=f"p{idx}", prompt_token_ids=job.prompt, params=params))
    started: set[str] = set()
    while len(started) < len(jobs):
        started |= {delta.request_id for delta in core.step() if delta.token_ids}
    for _ in range(NUM_STEPS):
        core.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        started_s = perf_counter()
        for _ in range(NUM_STEPS):
            core.step()
        torch.cuda.synchronize()
        seconds = perf_counter() - started_s
    _print(profiler, title, seconds / NUM_STEPS, NUM_STEPS)
    for idx in range(len(jobs)):
        core.abort(f"p{idx}")
    while core.has_work:
        core.step()


def profile_prefill(core: EngineCore, count: int, num_in: int) -> None:
    run(core, fixed(count, num_in, 1, 11))
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        seconds = run(core, fixed(count, num_in, 1, 12))
        torch.cuda.synchronize()
    _print(profiler, f"prefill {count} x {num_in}", seconds, 1)


def _print(profiler: profile, title: str, seconds: float, num_steps: int) -> None:
    times: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for event in profiler.events() or []:
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name] += event.time_range.elapsed_us()
            counts[event.name] += 1
    total = sum(times.values()) / num_steps
    print(f"== {title}: {seconds * 1e3:.2f} ms a step, kernels {total / 1e3:.2f} ms")
    for name in sorted(times, key=lambda key: -times[key])[:16]:
        per_step = times[name] / num_steps
        each = times[name] / counts[name]
        print(f"{per_step:9.1f} us {counts[name] / num_steps:6.1f} x {each:8.2f}  {name[:90]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(MODELS), default="llama8b")
    parser.add_argument("--quantization", choices=list(QUANTIZED))
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32, 256])
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--shared-prefix", type=int, default=0, help="tokens before the context")
    arguments = parser.parse_args()
    core, _ = make_core(
        MODELS[arguments.model],
        max_num_seqs=256,
        max_num_batched_tokens=8192,
        quantization=arguments.quantization,
    )
    num_shared, num_own = arguments.shared_prefix, arguments.context
    for batch in arguments.batch:
        jobs = shared_prefix(batch, num_shared, num_own, NUM_NEW, 7)
        title = f"decode batch {batch} at {num_shared} shared and {num_own}"
        profile_decode(core, title, jobs)
    for count, num_in in PROMPTS:
        profile_prefill(core, count, num_in)


if __name__ == "__main__":
    main()
