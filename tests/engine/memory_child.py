"""A process for `test_memory.py` to look at: many short requests through one engine.

Prints its resident memory in KiB after 200 and after 2,000 requests.
"""

import asyncio
import gc
import sys
from pathlib import Path

from tests.engine.fake_runner import FakeRunner

from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import SamplingParams


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
        params=SamplingParams(n=1 + number % 2, max_tokens=8, logprobs=1),
    )
    stream = engine.submit(request)
    async for _ in stream:
        if number % 10 == 0:
            engine.abort(request.request_id)


async def main() -> None:
    engine = InProcessEngine(FakeRunner(num_blocks=64), SchedulerSettings())
    for number in range(2000):
        await one(engine, number)
        if number + 1 in (200, 2000):
            sys.stdout.write(f"{resident_kib()}\n")
    stats = engine.stats()
    assert sum(stats.finished_total.values()) == 3000
    await engine.close()


if __name__ == "__main__":
    asyncio.run(main())
