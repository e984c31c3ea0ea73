"""Whether two ranks give what one gives, on tiny models of several families: see `gpu_ranks`.

In float32 the tokens are those of one rank up to the first near tie, where each side's choice is
among the other's likeliest. In bfloat16, whose sums take another way on two ranks, the logprobs of
two ranks are not much further from those of one rank in float32 than the ones of one rank in
bfloat16 are: models as rough as these differ by tenths from the last bits alone.
"""

import gc
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from tests.bench.gpu_rows import Row
from tests.engine.logprob_close import TOP, likeliest, parting, sampled
from tests.engine.runner_driver import Job, Outcome, run_jobs
from tests.engine.tiny_models import prompts, save_tiny

from octavo_engine.batch import Runner
from octavo_engine.config import (
    CacheSettings,
    DType,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.parallel.driver import build_parallel_runner
from octavo_engine.progress import silent
from octavo_engine.runner.build import build_runner
from octavo_engine.sampling_params import SamplingParams

TINY = {"head_dim": 64, "hidden_size": 256, "intermediate_size": 512}
FAMILIES = ["llama", "qwen3", "gemma2", "phi3", "olmo2", "qwen3_moe", "gpt_oss"]
DTYPES: tuple[DType, ...] = ("float32", "bfloat16")
LENGTHS = [5, 11, 24, 33, 47, 64, 70, 90]
NUM_NEW = 24
NUM_TOP = 20
FLOAT32_NATS = 1e-2
"""Products of float32 are summed in another order, on some devices from rounded parts."""
ROUNDING_FACTOR = 2.0
"""What luck adds to the error of a median prompt. A wrong sum errs by whole nats."""


@contextmanager
def runner_of(config: EngineConfig) -> Iterator[Runner]:
    if config.parallel.tensor_parallel_size > 1:
        runner: Runner = build_parallel_runner(config, None, silent, "console")
    else:
        runner = build_runner(config)
    try:
        yield runner
    finally:
        runner.close()


def parity_rows(
    families: Sequence[str], device: str, dtypes: Sequence[DType] = DTYPES
) -> Iterable[Row]:
    """Ends the program where two ranks are not what one is. dtypes: float32, which the other is
    judged by, alone or with it; each family takes half of the time with the first alone."""
    params = SamplingParams(temperature=0.0, logprobs=NUM_TOP)
    jobs = [Job(prompt, NUM_NEW, params) for prompt in prompts(LENGTHS)]
    for family in families:
        with tempfile.TemporaryDirectory() as folder:
            save_tiny(family, Path(folder), **TINY)
            exact, exact_two = (
                _outcomes(folder, device, "float32", num_ranks, jobs) for num_ranks in (1, 2)
            )
            yield from _exact_rows(family, exact, exact_two)
            if "bfloat16" in dtypes:
                rounded, rounded_two = (
                    _outcomes(folder, device, "bfloat16", num_ranks, jobs) for num_ranks in (1, 2)
                )
                yield from _rounded_rows(family, exact, rounded, rounded_two)


def _exact_rows(family: str, exact: list[Outcome], exact_two: list[Outcome]) -> Iterable[Row]:
    yield Row(f"{family} float32, equal tokens", _share_equal(exact, exact_two), "share")
    apart = max(max(errors) for errors in _errors(exact_two, exact))
    yield Row(f"{family} float32, first logprobs apart", apart, "nats", None, FLOAT32_NATS)
    for row, (one, two) in enumerate(zip(exact, exact_two, strict=True)):
        _refuse_other_tokens(family, row, one, two)
    if apart > FLOAT32_NATS:
        raise SystemExit(f"{family}: two ranks in float32 are {apart:.4f} nats from one")


def _rounded_rows(
    family: str, exact: list[Outcome], rounded: list[Outcome], rounded_two: list[Outcome]
) -> Iterable[Row]:
    yield Row(f"{family} bfloat16, equal tokens", _share_equal(rounded, rounded_two), "share")
    limit = ROUNDING_FACTOR * _typical(_errors(rounded, exact))
    error = _typical(_errors(rounded_two, exact))
    yield Row(f"{family} bfloat16, error of logprobs", error, "nats", None, limit)
    if error > limit:
        raise SystemExit(
            f"{family}: two ranks in bfloat16 err by {error:.4f} nats, one rank by "
            f"{limit / ROUNDING_FACTOR:.4f}"
        )


def _outcomes(
    folder: str, device: str, dtype: DType, num_ranks: int, jobs: list[Job]
) -> list[Outcome]:
    config = EngineConfig(
        model=ModelSettings(path=folder, device=device, dtype=dtype),
        cache=CacheSettings(block_size=16, gpu_memory_utilization=0.1, cpu_kv_cache_gib=0.1),
        scheduler=SchedulerSettings(max_num_seqs=8, max_num_batched_tokens=512),
        parallel=ParallelSettings(tensor_parallel_size=num_ranks),
    )
    try:
        with runner_of(config) as runner:
            outcomes = run_jobs(runner, jobs)
        del runner
        return outcomes
    finally:
        # The next runner counts what is allocated as its weights.
        gc.collect()
        if device == "cuda":
            torch.cuda.empty_cache()


def _share_equal(ones: list[Outcome], others: list[Outcome]) -> float:
    """Of all tokens those before the first of their row that differs."""
    counts = [
        NUM_NEW if (at := parting(one.token_ids, other.token_ids)) is None else at
        for one, other in zip(ones, others, strict=True)
    ]
    return sum(counts) / (NUM_NEW * len(ones))


def _refuse_other_tokens(family: str, row: int, one: Outcome, two: Outcome) -> None:
    at = parting(one.token_ids, two.token_ids)
    if at is None:
        return
    for mine, theirs in ((one, two), (two, one)):
        if mine.token_ids[at] not in likeliest(sampled(row, theirs)[at]):
            raise SystemExit(
                f"{family}: prompt {row} parts at token {at}: {mine.token_ids[at]} is not among "
                f"the other's likeliest {TOP}"
            )


def _errors(outcomes: list[Outcome], exact: list[Outcome]) -> list[list[float]]:
    """Of the first token's logprobs of each row, which follow the same tokens on both sides."""
    errors = []
    for row, (found, true) in enumerate(zip(outcomes, exact, strict=True)):
        known = likeliest(sampled(row, found)[0], NUM_TOP)
        wanted = likeliest(sampled(row, true)[0], NUM_TOP)
        errors.append(
            [abs(known[id_] - logprob) for id_, logprob in wanted.items() if id_ in known]
        )
    return errors


def _typical(errors: list[list[float]]) -> float:
    """Rounding that sends a token to another expert spoils whole prompts, but few of them."""
    return statistics.median(statistics.fmean(of_row) for of_row in errors)
