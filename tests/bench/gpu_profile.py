"""Where the time of a step goes on the GPU: `python -m tests.bench.gpu_profile --batch 1 256`.

Runs the engine with random weights under torch's profiler and prints kernels by time a step.
"""

import argparse
from collections import defaultdict
from time import perf_counter

import torch
from tests.bench.gpu import run
from tests.bench.gpu_dummy import make_core
from tests.bench.gpu_workloads import MODELS, fixed
from torch.profiler import ProfilerActivity, profile

from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import SamplingParams

NUM_STEPS = 8


def profile_decode(core: EngineCore, batch: int, num_in: int) -> None:
    for idx, job in enumerate(fixed(batch, num_in, 200, 7)):
        params = SamplingParams(temperature=0.0, max_tokens=200, ignore_eos=True)
        core.submit(EngineRequest(request_id=f"p{idx}", prompt_token_ids=job.prompt, params=params))
    for _ in range(20):
        core.step()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as profiler:
        started_s = perf_counter()
        for _ in range(NUM_STEPS):
            core.step()
        torch.cuda.synchronize()
        seconds = perf_counter() - started_s
    _print(profiler, f"decode batch {batch} at {num_in}", seconds / NUM_STEPS, NUM_STEPS)
    for idx in range(batch):
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
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 32, 256])
    parser.add_argument("--context", type=int, default=128)
    arguments = parser.parse_args()
    core, _ = make_core(MODELS[arguments.model], max_num_seqs=256, max_num_batched_tokens=8192)
    for batch in arguments.batch:
        profile_decode(core, batch, arguments.context)
    profile_prefill(core, 2, 4096)


if __name__ == "__main__":
    main()
