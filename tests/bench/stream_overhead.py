"""What reading the streams in the core's process costs the device: idle time beside 256 readers.

    python -m tests.bench.stream_overhead [--step-ms 6]

The device is a clock that takes its time for a step; each reader makes a line of JSON of each
token. Shown for several of the interpreter's switch intervals. Reported, not asserted.
"""

import argparse
import asyncio
import json
import sys
import time

from tests.bench.scheduler_overhead import NothingRunner

from octavo_engine.batch import Batch, StepResult
from octavo_engine.config import SchedulerSettings
from octavo_engine.core.in_process import InProcessEngine
from octavo_engine.messages import EngineRequest
from octavo_engine.sampling_params import SamplingParams

NUM_STREAMS = 256
NUM_TOKENS = 300
SWITCH_INTERVALS_S = (0.005, 0.001, 0.0005, 0.0002)


class TimedHandle:
    def __init__(self, result: StepResult, end_s: float) -> None:
        self._result = result
        self._end_s = end_s

    def result(self) -> StepResult:
        time.sleep(max(0.0, self._end_s - time.perf_counter()))
        return self._result


class ClockRunner(NothingRunner):
    """Steps run one after another, each for the same time; notes how long it waited for them."""

    def __init__(self, num_rows: int, step_s: float) -> None:
        super().__init__(num_rows)
        self._step_s = step_s
        self._free_at_s = time.perf_counter()
        self.idle_s = 0.0

    def launch(self, batch: Batch) -> TimedHandle:  # type: ignore[override]  # wraps the handle of the base class
        now_s = time.perf_counter()
        self.idle_s += max(0.0, now_s - self._free_at_s)
        self._free_at_s = max(now_s, self._free_at_s) + self._step_s
        return TimedHandle(super().launch(batch).result(), self._free_at_s)


async def read(engine: InProcessEngine, number: int) -> None:
    params = SamplingParams(max_tokens=NUM_TOKENS)
    request = EngineRequest(request_id=str(number), prompt_token_ids=[number] * 10, params=params)
    async for deltas in engine.submit(request):
        for delta in deltas:
            json.dumps({"id": delta.request_id, "choices": [{"delta": delta.token_ids}]})


async def measure(step_s: float) -> str:
    runner = ClockRunner(NUM_STREAMS, step_s)
    engine = InProcessEngine(runner, SchedulerSettings())
    start_s = time.perf_counter()
    runner.idle_s = 0.0
    await asyncio.gather(*(read(engine, number) for number in range(NUM_STREAMS)))
    total_s = time.perf_counter() - start_s
    await engine.close()
    return f"{total_s:.2f} s, the device idle for {runner.idle_s / total_s:.0%} of it"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step-ms", type=float, default=6.0)
    step_s = parser.parse_args().step_ms / 1000
    for interval_s in SWITCH_INTERVALS_S:
        sys.setswitchinterval(interval_s)
        print(f"switch interval {interval_s * 1000:.1f} ms: {asyncio.run(measure(step_s))}")


if __name__ == "__main__":
    main()
