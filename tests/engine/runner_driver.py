"""Drives a runner without a scheduler: static pages, chunked prefill, decode, all rows at once.

Steps are launched before the results of earlier ones are read, as the engine does.
"""

from dataclasses import dataclass, field

from octavo_engine.batch import AdmittedRow, Batch, RowWork, Runner, StepResult
from octavo_engine.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


@dataclass
class Job:
    token_ids: list[int]
    num_new: int
    params: SamplingParams = GREEDY
    seed: int = 0
    num_prompt: int | None = None
    """Where the prompt ends; None: token_ids is all prompt."""


@dataclass
class Outcome:
    token_ids: list[int] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)


def run_jobs(runner: Runner, jobs: list[Job], *, chunk: int = 10**6) -> list[Outcome]:
    """Every job in its own row; a row decodes as soon as its prefill is through."""
    block_size = runner.info.block_size
    next_block = 1
    admitted = []
    for row, job in enumerate(jobs):
        num_blocks = -(-(len(job.token_ids) + job.num_new) // block_size)
        tables = []
        for _ in runner.kv_groups:
            tables.append(list(range(next_block, next_block + num_blocks)))
            next_block += num_blocks
        admitted.append(
            AdmittedRow(
                row=row,
                token_ids=job.token_ids,
                num_prompt_tokens=job.num_prompt or len(job.token_ids),
                params=job.params,
                seed=job.seed,
                block_tables=tables,
            )
        )
    assert next_block <= runner.info.num_blocks, "the test's pages do not fit"
    handles = []
    done = [0] * len(jobs)
    step_id = 0
    while True:
        work = [
            item
            for row, job in enumerate(jobs)
            if (item := _next_work(row, job, done[row], chunk)) is not None
        ]
        if not work:
            break
        for item in work:
            done[item.row] += item.num_tokens
        batch = Batch(step_id=step_id, admitted=admitted if step_id == 0 else [], work=work)
        handles.append(runner.launch(batch))
        step_id += 1
    outcomes = [Outcome() for _ in jobs]
    for handle in handles:
        result = handle.result()
        for token in result.sampled:
            outcomes[token.row].token_ids.append(token.token_id)
        for outcome in outcomes:
            outcome.results.append(result)
    return outcomes


def _next_work(row: int, job: Job, done: int, chunk: int) -> RowWork | None:
    known = len(job.token_ids)
    if done < known:
        num_tokens = min(chunk, known - done)
        return RowWork(row, done, num_tokens, done + num_tokens == known, "prefill")
    if done < known + job.num_new - 1:
        return RowWork(row, done, 1, True, "decode")
    return None


def tokens_of(outcomes: list[Outcome]) -> list[list[int]]:
    return [outcome.token_ids for outcome in outcomes]
