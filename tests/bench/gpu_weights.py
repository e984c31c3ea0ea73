"""How fast weights come from files in the page cache onto a GPU: python -m tests.bench.gpu_weights

Compares the engine's parallel reader with one thread over mapped files, and with what threads get
that read the same files into host memory and do nothing else: the rate of the page cache.
"""

import argparse
import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from octavo_engine.loading.parallel_read import CHUNK_BYTES, GIB, NUM_THREADS, ParallelReader

NUM_FILES = 4
TENSORS_PER_FILE = 8


def write_files(folder: Path, gib: float) -> list[Path]:
    numbers = int(gib * GIB) // 2 // NUM_FILES // TENSORS_PER_FILE
    paths = []
    for idx in range(NUM_FILES):
        tensors = {
            f"{idx}.{part}": torch.randn(numbers, dtype=torch.bfloat16, device="cuda").cpu()
            for part in range(TENSORS_PER_FILE)
        }
        paths.append(folder / f"{idx}.safetensors")
        save_file(tensors, paths[-1])
    return paths


def by_one_thread(paths: list[Path]) -> None:
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  no dictionary
                file.get_tensor(name).to("cuda")
    torch.cuda.synchronize()


def by_reader(paths: list[Path], num_threads: int, chunk_bytes: int, chunks_per_piece: int) -> None:
    reader = ParallelReader(
        paths,
        torch.device("cuda", 0),
        num_threads=num_threads,
        chunk_bytes=chunk_bytes,
        chunks_per_piece=chunks_per_piece,
    )
    for _ in reader.tensors():
        pass
    torch.cuda.synchronize()


def page_cache_alone(paths: list[Path], num_threads: int) -> None:
    """Each thread into a buffer of its own."""
    own = threading.local()

    def read(job: tuple[int, int]) -> None:
        if not hasattr(own, "buffer"):
            own.buffer = torch.zeros(CHUNK_BYTES, dtype=torch.uint8).numpy()
        file, offset = job
        os.preadv(file, [own.buffer], offset)

    files = [os.open(path, os.O_RDONLY) for path in paths]
    jobs = [
        (file, offset)
        for file, path in zip(files, paths, strict=True)
        for offset in range(0, path.stat().st_size, CHUNK_BYTES)
    ]
    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(read, jobs))
    for file in files:
        os.close(file)


def rate(name: str, gib: float, run: Callable[[], None]) -> None:
    seconds = []
    for _ in range(3):
        started_s = perf_counter()
        run()
        seconds.append(perf_counter() - started_s)
    print(f"{name:40s} {gib / seconds[0]:6.1f} {gib / min(seconds):6.1f} GiB/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gib", type=float, default=6.0)
    gib = parser.parse_args().gib
    with tempfile.TemporaryDirectory() as folder:
        paths = write_files(Path(folder), gib)
        print(f"{'first, best of three':>60s}")
        rate("mapped files, one thread", gib, partial(by_one_thread, paths))
        for num_threads in (1, NUM_THREADS, 16):
            name = f"page cache alone, {num_threads} threads"
            rate(name, gib, partial(page_cache_alone, paths, num_threads))
        for num_threads, mib, chunks in (
            (NUM_THREADS, 16, 4), (NUM_THREADS, 16, 1), (16, 16, 4), (16, 8, 8), (12, 32, 2),
        ):  # fmt: skip
            name = f"reader, {num_threads} threads, pieces of {chunks} x {mib} MiB"
            rate(name, gib, partial(by_reader, paths, num_threads, mib * 2**20, chunks))


if __name__ == "__main__":
    main()
