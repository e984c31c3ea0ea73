"""Seconds from a process's start to its first token, with empty caches and with warm ones.

    python -m tests.bench.gpu_startup

Each start is a process of its own with random weights; nothing is read from a disk but code.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

from tests.bench.gpu_workloads import MODELS

READY = "ready"


def start_once(folder: Path, cache: Path) -> float:
    environment = os.environ | {
        "OCTAVO_CACHE_DIR": str(cache),
        "TRITON_CACHE_DIR": str(cache / "kernels"),
    }
    command = [sys.executable, "-m", "tests.bench.gpu_startup", str(folder)]
    started_s = perf_counter()
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == READY:
                seconds = perf_counter() - started_s
                process.wait()
                return seconds
            print("   ", line, end="", flush=True)
    raise RuntimeError(f"the start ended with {process.returncode}")


def starts(model: str) -> Iterator[tuple[str, float]]:
    from tests.bench.gpu_dummy import write_config

    folder = write_config(MODELS[model])
    with tempfile.TemporaryDirectory() as cache:
        for name in ("cold", "warm", "warm again"):
            yield name, start_once(folder, Path(cache))


def child(folder: str) -> None:
    begun_s = perf_counter()
    from octavo_engine.config import EngineConfig, ModelSettings, SchedulerSettings
    from octavo_engine.core.engine import EngineCore
    from octavo_engine.core.start import start_runner
    from octavo_engine.messages import EngineRequest
    from octavo_engine.sampling_params import SamplingParams

    marks: list[tuple[str, float]] = []

    def note(stage: str, share: float) -> None:
        if not marks or marks[-1][0] != stage:
            marks.append((stage, perf_counter()))

    scheduler = SchedulerSettings()
    settings = ModelSettings(path=folder, device="cuda", load_format="dummy", max_model_len=8192)
    runner = start_runner(EngineConfig(model=settings, scheduler=scheduler), report=note)
    built_s = perf_counter()
    core = EngineCore(runner, scheduler)
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    core.submit(EngineRequest(request_id="first", prompt_token_ids=[11] * 100, params=params))
    while core.has_work:
        core.step()
    print(READY, flush=True)
    stages = [("imports and config", begun_s), *marks, ("first token", built_s)]
    ends = [at for _, at in stages[1:]] + [perf_counter()]
    text = ", ".join(f"{name} {end - at:.2f}" for (name, at), end in zip(stages, ends, strict=True))
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    if len(sys.argv) > 1:
        child(sys.argv[1])
        return
    for name, seconds in starts("llama8b"):
        print(f"start-up {name}: {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
