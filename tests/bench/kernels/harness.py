"""Times kernels inside CUDA graphs over data sets that do not fit in the L2 cache; writes CSV rows.

A case knows its floor: the time that its bytes and FLOPs take at the machine's measured ceilings.
"""

import csv
import datetime
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import triton

# Measured on an H200: reads of a large buffer, and a large bfloat16 matrix product.
BYTES_PER_S = 4.52e12
FLOPS_PER_S = 758e12
REPEATS = 7
# Long enough for the clocks to settle after a change of size; matrix work throttles beyond: a
# prefill at 816 us takes 911 us after 50 ms.
WARM_UP_S = 0.01
FIELDS = ("date", "gpu", "torch", "triton", "commit", "case", "us", "floor_us", "ratio")


@dataclass(frozen=True)
class Case:
    name: str
    launch: Callable[[int], object]
    """Runs the kernel on data set i."""
    num_sets: int
    num_bytes: float
    """Moved through device memory at least."""
    num_flops: float = 0.0

    @property
    def floor_us(self) -> float:
        return 1e6 * max(self.num_bytes / BYTES_PER_S, self.num_flops / FLOPS_PER_S)


@dataclass(frozen=True)
class Timing:
    case: str
    us: float
    floor_us: float


def sets_beyond_cache(bytes_per_set: float, *, at_most: int = 64) -> int:
    """How many data sets make at least 300 MB, five times the L2 cache."""
    return max(2, min(at_most, int(3e8 / max(bytes_per_set, 1)) + 1))


def measure(case: Case) -> Timing:
    """Median over replays of one graph that runs the kernel once on each data set."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for i in range(case.num_sets):
            case.launch(i)
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(case.num_sets):
            case.launch(i)
    _warm_up(graph)
    times_us = []
    for _ in range(REPEATS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times_us.append(1e3 * begin.elapsed_time(end) / case.num_sets)
    return Timing(case.name, statistics.median(times_us), case.floor_us)


def _warm_up(graph: torch.cuda.CUDAGraph) -> None:
    """Replays for a while: after a change of size the first replays are up to 12 % slower."""
    begin = time.monotonic()
    while time.monotonic() - begin < WARM_UP_S:
        graph.replay()
        torch.cuda.synchronize()


def run(cases: Iterator[Case]) -> list[Timing]:
    timings = []
    for case in cases:
        timing = measure(case)
        ratio = timing.us / timing.floor_us
        print(f"{timing.case:58s} {timing.us:9.2f} us, {ratio:6.2f} x floor", flush=True)
        timings.append(timing)
    return timings


def append_csv(path: Path, timings: list[Timing], commit: str | None) -> None:
    """Creates the file with its header when it is not there."""
    fresh = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if fresh:
            writer.writerow(FIELDS)
        for timing in timings:
            writer.writerow(
                (
                    datetime.datetime.now(datetime.UTC).date().isoformat(),
                    torch.cuda.get_device_name(),
                    torch.__version__,
                    triton.__version__,
                    commit or _commit(),
                    timing.case,
                    f"{timing.us:.2f}",
                    f"{timing.floor_us:.2f}",
                    f"{timing.us / timing.floor_us:.3f}",
                )
            )


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
