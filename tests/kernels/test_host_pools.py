"""OpenMP's helpers of a thread end when it gives them back, and come again for its next work."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from octavo_kernels import release_threads

CPU = torch.device("cpu")
DEADLINE_S = 10.0


def test_a_thread_gives_its_helpers_back() -> None:
    with ThreadPoolExecutor(1) as thread:  # of its own: what other tests have left does not count
        assert thread.submit(compute).result() == 2**20
        with_helper = num_threads()
        thread.submit(release_threads, CPU).result()
        deadline = time.monotonic() + DEADLINE_S
        while num_threads() >= with_helper:
            assert time.monotonic() < deadline, f"{num_threads()} threads, as before"
            time.sleep(0.01)
        assert thread.submit(compute).result() == 2**20
        assert num_threads() == with_helper


def compute() -> float:
    torch.set_num_threads(2)
    return float(torch.ones(2**20).add_(0.0).sum())


def num_threads() -> int:
    return len(list(Path(f"/proc/{os.getpid()}/task").iterdir()))
