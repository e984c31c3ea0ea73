"""A process for `test_memory.py` to look at: many short requests through one engine.

    python -m tests.engine.memory_child [FOLDER]

Over the model in the folder, else over a fake runner. Prints its resident memory in KiB after 200
and after 2,000 requests.
"""

import asyncio
import gc
import sys
from pathlib import Path

from tests.engine.fake_runner import FakeRunner

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine, build_engine
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import SamplingParams

AT_ONCE = 100


def resident_kib() -> int:
    gc.collect()
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1])


async def one(engine: InProcessEngine, number: int) -> None:
    prompt = [(number * 7 + i * (1 + number % 11)) % 90 + 3 for i in range(40)]
    request = EngineRequest(
        request_id=str(number),
        prompt_token_ids=prompt,
        params=SamplingParams(n=1 + number % 2, max_tokens=4, logprobs=1),
    )
    stream = engine.submit(request)
    async for _ in stream:
        if number % 10 == 0:
            engine.abort(request.request_id)


def make_engine(folder: str | None) -> InProcessEngine:
    if folder is None:
        return InProcessEngine(FakeRunner(num_blocks=64), SchedulerSettings())
    return build_engine(
        EngineConfig(
            model=ModelSettings(path=folder, device="cpu", dtype="float32"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.01),
            scheduler=SchedulerSettings(max_num_seqs=2 * AT_ONCE),
        )
    )


async def main(folder: str | None) -> None:
    engine = make_engine(folder)
    at_once = 1 if folder is None else AT_ONCE
    for first in range(0, 2000, at_once):
        await asyncio.gather(*(one(engine, first + i) for i in range(at_once)))
        if first + at_once in (200, 2000):
            sys.stdout.write(f"{resident_kib()}\n")
    stats = engine.stats()
    assert sum(stats.finished_total.values()) == 3000
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:] or [None]))
