"""Where the GPU's memory goes: measured before the pages are sized, printed at start-up.

The largest step that the settings allow is run on two pages, and the largest graphs are captured
once, so that pages take what is really left. Knows the runner only by what it can run.
"""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec
import structlog
import torch

from octavo_engine.batch import AdmittedRow, Batch, RowWork
from octavo_engine.cuda.runner import CudaRunner
from octavo_engine.errors import ConfigError
from octavo_engine.memory_facts import GIB, MARGIN_BYTES
from octavo_engine.parallel.group import Group
from octavo_engine.sampling_params import MAX_LOGPROBS, SamplingParams

log = structlog.get_logger(__name__)

PROMPT_LOGPROBS_LEN = 300
"""Longer prompts take no more memory, only time."""


@dataclass(frozen=True, kw_only=True)
class MemoryBudget:
    """Bytes of one GPU."""

    total_bytes: int
    limit_bytes: int
    """What the engine may use."""
    weights_bytes: int
    tables_bytes: int
    """Request table, rotation tables and the captured steps' buffers."""
    activations_bytes: int
    """Of the largest step, beyond what it leaves behind."""
    graphs_bytes: int
    others_bytes: int
    """The CUDA context, libraries and other processes."""

    @property
    def pages_bytes(self) -> int:
        taken = (
            self.weights_bytes
            + self.tables_bytes
            + self.activations_bytes
            + self.graphs_bytes
            + self.others_bytes
            + MARGIN_BYTES
        )
        if taken >= self.limit_bytes:
            raise ConfigError(
                f"no memory is left for pages: {taken / GIB:.2f} GiB are taken of the "
                f"{self.limit_bytes / GIB:.2f} GiB allowed "
                f"({', '.join(f'{name} {value}' for name, value in self.table())})"
            )
        return self.limit_bytes - taken

    def table(self) -> list[tuple[str, str]]:
        """What to print: name and GiB."""
        values = {
            "weights": self.weights_bytes,
            "tables": self.tables_bytes,
            "activations": self.activations_bytes,
            "graphs": self.graphs_bytes,
            "others": self.others_bytes,
            "margin": MARGIN_BYTES,
        }
        return [(name, f"{value / GIB:.2f}") for name, value in values.items()]

    def log(self) -> None:
        log.info(
            "gpu_memory_gib",
            total=f"{self.total_bytes / GIB:.2f}",
            limit=f"{self.limit_bytes / GIB:.2f}",
            **dict(self.table()),
            pages=f"{self.pages_bytes / GIB:.2f}",
        )


def measure_budget(
    probe: CudaRunner,
    *,
    weights_bytes: int,
    max_step_tokens: int,
    utilization: float,
    device: torch.device,
) -> MemoryBudget:
    """probe runs on a few pages that go away afterwards; its kernels are compiled here."""
    held_bytes = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    run_largest_step(probe, max_step_tokens)
    activations_bytes = torch.cuda.max_memory_allocated(device) - held_bytes
    graphs_bytes = _trial_capture_bytes(probe, device)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    others_bytes = total_bytes - free_bytes - torch.cuda.memory_reserved(device)
    return MemoryBudget(
        total_bytes=total_bytes,
        limit_bytes=int(total_bytes * utilization),
        weights_bytes=weights_bytes,
        tables_bytes=held_bytes - weights_bytes,
        activations_bytes=activations_bytes,
        graphs_bytes=graphs_bytes,
        others_bytes=others_bytes,
    )


def _trial_capture_bytes(probe: CudaRunner, device: torch.device) -> int:
    """What the largest graphs take; smaller ones live in their memory."""
    _release_cached()
    before_bytes = torch.cuda.memory_reserved(device)
    capture_all(probe, device, num_sizes=1)
    torch.cuda.synchronize(device)
    _release_cached()
    taken_bytes = torch.cuda.memory_reserved(device) - before_bytes
    for function in probe.captured_functions():
        function.drop()
    _release_cached()
    return max(0, taken_bytes)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """For the memory's measuring, which collects by itself, and for captures: what lives before is
    not walked again, 0.2 s each time, and nothing is walked in the middle of a capture."""
    gc.collect()
    gc.freeze()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _release_cached() -> None:
    gc.collect()
    torch.cuda.empty_cache()


@torch.inference_mode()
def compile_kernels(probe: CudaRunner, device: torch.device, group: Group) -> None:
    """Compiles in threads what the runner launches: one after the other it takes three times as
    long. Where the caches of all ranks have the kernels of the smallest sizes they are taken to
    have them all: ranks do the same, since what they launch waits for the others."""
    from octavo_kernels.gpu.compile_only import compile_only

    functions = probe.captured_functions()
    probe.stage_padding()
    with compile_only(os.cpu_count() or 1) as smallest:
        for function in functions:
            function.touch(only_smallest=True)
        # The first that is new ends the wait: the others compile beside those that follow.
        if group.smallest(-smallest.wait_for_new()):
            for function in functions:
                function.touch()
            probe.touch_uncaptured()
    torch.cuda.synchronize(device)


@torch.inference_mode()
def capture_all(runner: CudaRunner, device: torch.device, num_sizes: int | None = None) -> None:
    """Warms and captures the runner's functions on a stream of their own."""
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    pool = torch.cuda.graph_pool_handle()
    with torch.cuda.stream(stream):
        runner.stage_padding()
        for function in runner.captured_functions():
            function.warm(num_sizes)
            function.capture(pool, num_sizes)
    torch.cuda.current_stream(device).wait_stream(stream)


def run_largest_step(runner: CudaRunner, max_step_tokens: int) -> None:
    """Every row of the table works and samples with every option on; the first one's prompt has
    its logprobs told, for which the last layer computes all tokens.

    All rows write to the null page: what they compute is of no interest.
    """
    info = runner.info
    params = SamplingParams(
        temperature=1.0, top_p=0.9, frequency_penalty=0.1, logprobs=MAX_LOGPROBS
    )
    lens = _row_lens(info.max_num_seqs, info.max_model_len, max_step_tokens)
    first = msgspec.structs.replace(params, prompt_logprobs=MAX_LOGPROBS)
    wishes = [first] + [params] * (len(lens) - 1)
    runner.launch(_null_batch(runner, lens, wishes)).result()
    released = list(range(info.max_num_seqs))
    runner.launch(Batch(step_id=0, released_rows=released)).result()


def _row_lens(num_rows: int, max_len: int, num_tokens: int) -> list[int]:
    """At least one token a row, as many as fit in the first rows."""
    lens: list[int] = []
    for idx in range(num_rows):
        rows_after = num_rows - idx - 1
        lens.append(max(1, min(max_len, num_tokens - sum(lens) - rows_after)))
    return lens


def _null_batch(runner: CudaRunner, lens: list[int], wishes: list[SamplingParams]) -> Batch:
    admitted = [
        AdmittedRow(
            row=row,
            token_ids=[0] * length,
            num_prompt_tokens=min(length, PROMPT_LOGPROBS_LEN),
            params=params,
            seed=0,
            block_tables=[[0] * -(-length // runner.info.block_size) for _ in runner.kv_groups],
        )
        for row, (length, params) in enumerate(zip(lens, wishes, strict=True))
    ]
    work = [
        RowWork(row, 0, length, True, "decode" if length == 1 else "prefill")
        for row, length in enumerate(lens)
    ]
    return Batch(step_id=0, admitted=admitted, work=work)
