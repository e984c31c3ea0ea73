"""What scheduling costs: milliseconds a step with 256 running requests, the runner doing nothing.

    python tests/bench/scheduler_overhead.py [--requests 256] [--steps 1000]

Reported, not asserted: the number depends on the machine.
"""

import argparse
import statistics
import time

from octavo_engine.batch import Batch, KVGroup, SampledToken, StepResult
from octavo_engine.config import SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineInfo, EngineRequest
from octavo_engine.sampling_params import SamplingParams


class DoneHandle:
    def __init__(self, result: StepResult) -> None:
        self._result = result

    def result(self) -> StepResult:
        return self._result


class NothingRunner:
    """Answers every sample with the same token; its own cost is a list of ready-made objects."""

    kv_groups = (KVGroup((0,), None),)
    num_host_blocks = 0

    def __init__(self, num_rows: int) -> None:
        self.info = EngineInfo(
            vocab_size=1000,
            max_model_len=8192,
            block_size=64,
            num_blocks=num_rows * 130,
            max_num_seqs=num_rows,
            dtype="bfloat16",
            device="cuda:0",
        )
        self._tokens = [SampledToken(row=row, token_id=7) for row in range(num_rows)]

    def launch(self, batch: Batch) -> DoneHandle:
        sampled = [self._tokens[work.row] for work in batch.work if work.samples]
        return DoneHandle(StepResult(step_id=batch.step_id, sampled=sampled))

    def close(self) -> None:
        pass


def measure(num_requests: int, num_steps: int) -> list[float]:
    core = EngineCore(NothingRunner(num_requests), SchedulerSettings())
    for i in range(num_requests):
        core.submit(
            EngineRequest(
                request_id=str(i),
                prompt_token_ids=[i % 1000] * 100,
                params=SamplingParams(max_tokens=num_steps + 100),
                arrival_time_s=float(i),
            )
        )
    while core.stats().num_waiting or core.stats().generation_tokens_total < num_requests:
        core.step()
    times_ms = []
    for _ in range(num_steps):
        start_s = time.perf_counter()
        core.step()
        times_ms.append((time.perf_counter() - start_s) * 1000)
    return times_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--steps", type=int, default=1000)
    args = parser.parse_args()
    times_ms = sorted(measure(args.requests, args.steps))
    print(
        f"{args.requests} running requests, {args.steps} steps: "
        f"median {statistics.median(times_ms):.3f} ms, "
        f"p90 {times_ms[int(len(times_ms) * 0.9)]:.3f} ms, worst {times_ms[-1]:.3f} ms"
    )


if __name__ == "__main__":
    main()
