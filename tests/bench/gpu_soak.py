"""The engine at full load for some minutes: `python -m tests.bench.gpu_soak --minutes 10`.

Requests of mixed lengths and wishes keep every row busy; each must get all its tokens. Fails on any
error, on pages that do not add up, and when the memory of GPU or host grows after the first minute.
"""

import argparse
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from tests.bench.gpu_dummy import write_config
from tests.bench.gpu_workloads import MODELS

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams

WISHES: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 50, "seed": 7},
    {"temperature": 0.7, "frequency_penalty": 0.5, "logprobs": 5},
)
ALLOWED_GROWTH_BYTES = 64 * 2**20
TINY: dict[str, Any] = MODELS["llama8b"] | {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": 1000,
}


@dataclass
class Soak:
    core: EngineCore
    vocab_size: int
    max_len: int
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    wanted: dict[str, int] = field(default_factory=dict)
    received: Counter[str] = field(default_factory=Counter)
    num_done: int = 0
    num_tokens: int = 0

    def submit(self) -> None:
        lens = np.clip(np.rint(self.generator.lognormal(4.0, 1.0, size=2)), 4, self.max_len // 2)
        num_in, num_out = (int(length) for length in lens)
        wish = WISHES[int(self.generator.integers(len(WISHES)))]
        prompt = self.generator.integers(10, self.vocab_size, size=num_in).tolist()
        request_id = f"{self.num_done + len(self.wanted)}-{perf_counter()}"
        params = SamplingParams(max_tokens=num_out, ignore_eos=True, **wish)
        self.core.submit(
            EngineRequest(request_id=request_id, prompt_token_ids=prompt, params=params)
        )
        self.wanted[request_id] = num_out

    def run(self, seconds: float, num_at_once: int) -> None:
        end_s = perf_counter() + seconds
        while perf_counter() < end_s or self.core.has_work:
            while perf_counter() < end_s and len(self.wanted) < num_at_once:
                self.submit()
            for delta in self.core.step():
                self._take(delta)
        if self.wanted:
            raise RuntimeError(f"{len(self.wanted)} requests never ended")
        self.core.check_integrity()

    def _take(self, delta: Any) -> None:
        if delta.error is not None:
            raise RuntimeError(f"{delta.request_id}: {delta.error}")
        self.received[delta.request_id] += len(delta.token_ids)
        self.num_tokens += len(delta.token_ids)
        if delta.finish_reason is not None:
            wanted = self.wanted.pop(delta.request_id)
            received = self.received.pop(delta.request_id)
            if received != wanted:
                raise RuntimeError(f"{received} tokens came, {wanted} were asked for")
            self.num_done += 1


def host_bytes() -> int:
    resident = int(Path("/proc/self/statm").read_text().split()[1])
    return resident * os.sysconf("SC_PAGE_SIZE")


def gpu_bytes(device: str) -> int:
    if device != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--model", choices=[*MODELS, "tiny"], default="llama8b")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--at-once", type=int, default=300)
    arguments = parser.parse_args()
    raw = TINY if arguments.model == "tiny" else MODELS[arguments.model]
    scheduler = SchedulerSettings()
    settings = ModelSettings(
        path=str(write_config(raw)), device=arguments.device, load_format="dummy",
        max_model_len=2048,
    )  # fmt: skip
    cache = CacheSettings(cpu_kv_cache_gib=0.1)
    runner = build_runner(EngineConfig(model=settings, cache=cache, scheduler=scheduler))
    soak = Soak(EngineCore(runner, scheduler), raw["vocab_size"], 2048)
    parts = max(2, round(arguments.minutes))
    sizes = []
    for part in range(parts):
        soak.run(60 * arguments.minutes / parts, arguments.at_once)
        sizes.append((gpu_bytes(arguments.device), host_bytes()))
        gpu_mib, host_mib = (size / 2**20 for size in sizes[-1])
        print(
            f"part {part + 1} of {parts}: {soak.num_done} requests, {soak.num_tokens} tokens, "
            f"GPU {gpu_mib:.0f} MiB, host {host_mib:.0f} MiB",
            flush=True,
        )
    for name, first, last in zip(("GPU", "host"), sizes[0], sizes[-1], strict=True):
        if last - first > ALLOWED_GROWTH_BYTES:
            raise SystemExit(f"{name} memory grew by {(last - first) / 2**20:.0f} MiB")
    print("no error, no growth")


if __name__ == "__main__":
    main()
