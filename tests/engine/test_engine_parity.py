"""Scheduler, pages and real runner together: the tokens of transformers whatever happens to a row.

Tiny seeded checkpoints in float32; every way of splitting the work must give the same ids.
"""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.engine.limited_runner import Limited
from tests.engine.tiny_models import FAMILY_CONFIGS, forced_tokens, prompts, save_tiny

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, SchedulerSettings
from octavo_engine.core.engine import EngineCore
from octavo_engine.messages import EngineRequest
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.sampling_params import SamplingParams

NUM_NEW = 64
LENGTHS = [1, 5, 16, 23, 24, 25, 40, 70]
GREEDY = SamplingParams(temperature=0.0, max_tokens=NUM_NEW)
KINDS = ["llama", "mistral", "gemma2", "gpt_oss"]
"""Full attention, windows only, and both, with and without sinks."""


def run(
    runner: Any,
    wanted: list[tuple[list[int], SamplingParams]],
    budget: int = 256,
    *,
    prefix_caching: bool = False,
) -> tuple[list[list[int]], EngineCore]:
    core = EngineCore(
        runner,
        SchedulerSettings(max_num_seqs=min(16, budget), max_num_batched_tokens=budget),
        prefix_caching=prefix_caching,
    )
    return submit_and_wait(core, wanted), core


def submit_and_wait(
    core: EngineCore, wanted: list[tuple[list[int], SamplingParams]], salt: str | None = None
) -> list[list[int]]:
    for at, (prompt, params) in enumerate(wanted):
        core.submit(
            EngineRequest(
                request_id=str(at), prompt_token_ids=prompt, params=params, cache_salt=salt
            )
        )
    tokens: list[list[int]] = [[] for _ in wanted]
    while core.has_work:
        for delta in core.step():
            assert delta.error is None
            tokens[int(delta.request_id)] += delta.token_ids
    core.check_integrity()
    return tokens


@pytest.fixture
def make(tmp_path: Path):
    runners = []

    def make_model(name: str) -> tuple[Any, ModelRunner]:
        reference = save_tiny(name, tmp_path)
        runner = build_runner(
            EngineConfig(
                model=ModelSettings(path=str(tmp_path), device="cpu"),
                cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02, swap_space_gib=0.02),
            )
        )
        runners.append(runner)
        return reference, runner

    yield make_model
    for runner in runners:
        runner.close()


def tight_pool(runner: ModelRunner) -> int:
    """Pages for one long sequence and a few short ones: eight together must preempt each other."""
    return 1 + 14 * len(runner.kv_groups)


def num_swapped(core: EngineCore) -> int:
    return core._scheduler.state.counters.swapped_out


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_crowd_with_chunks_preemption_and_swap_gets_the_reference_tokens(name, make):
    reference, runner = make(name)
    wanted = [(prompt, GREEDY) for prompt in prompts(LENGTHS)]
    pool = tight_pool(runner)
    recomputed, core = run(Limited(runner, pool), wanted, budget=23)
    assert core.stats().preemptions_total > 0
    for (prompt, _), tokens in zip(wanted, recomputed, strict=True):
        assert len(tokens) == NUM_NEW
        assert tokens == forced_tokens(reference, prompt, tokens)
    swapped, core = run(Limited(runner, pool, num_host_blocks=200), wanted, budget=64)
    assert num_swapped(core) > 0
    assert swapped == recomputed


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_no_token(name, chunk, make):
    reference, runner = make(name)
    params = msgspec.structs.replace(GREEDY, max_tokens=16)
    for prompt in prompts([70, 33]):
        ((tokens), core) = run(runner, [(prompt, params)], budget=chunk)
        assert tokens[0] == forced_tokens(reference, prompt, tokens[0])
        assert core.stats().steps_total >= -(-len(prompt) // chunk) + 15


@pytest.mark.parametrize("name", FAMILY_CONFIGS)
def test_a_prefix_hit_at_every_split_point_changes_no_token(name, make):
    reference, runner = make(name)
    base, other = prompts([70, 20])
    params = msgspec.structs.replace(GREEDY, max_tokens=4)
    core = EngineCore(runner, SchedulerSettings(max_num_seqs=16, max_num_batched_tokens=200))
    submit_and_wait(core, [(base, params)])
    wanted = [(base[:split] + other, params) for split in range(1, 70)]
    wanted += [(base[:split], params) for split in range(1, 71)]
    hits_before = core.stats().prefix_hits_tokens_total
    found = submit_and_wait(core, wanted)
    hits = core.stats().prefix_hits_tokens_total - hits_before
    assert hits >= sum(split // 16 * 16 for split in range(1, 70)), "the pages were not there"
    for (prompt, _), tokens in zip(wanted, found, strict=True):
        assert tokens == forced_tokens(reference, prompt, tokens)


@pytest.mark.parametrize("name", KINDS)
def test_a_prefix_computed_in_the_same_step_changes_no_token(name, make):
    reference, runner = make(name)
    base, *others = prompts([70, 20, 1])
    params = msgspec.structs.replace(GREEDY, max_tokens=4)
    wanted = [(base + other, params) for other in others]
    found, core = run(runner, wanted, prefix_caching=True)
    assert core.stats().prefix_hits_tokens_total == 64, "the second found no page of the first"
    for (prompt, _), tokens in zip(wanted, found, strict=True):
        assert tokens == forced_tokens(reference, prompt, tokens)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_sampled_sequences_are_the_same_alone_and_in_a_crowd_with_preemptions(name, make):
    _, runner = make(name)
    watched = [
        (prompts([30])[0], SamplingParams(seed=seed, temperature=0.9, top_p=0.95, max_tokens=40))
        for seed in (1, 2)
    ]
    alone = [run(runner, [item])[0][0] for item in watched]
    assert alone[0] != alone[1]
    crowd = [
        (prompt, SamplingParams(seed=9 + at, max_tokens=40))
        for at, prompt in enumerate(prompts([5 + 3 * i for i in range(14)]))
    ]
    tokens, core = run(
        Limited(runner, tight_pool(runner) + 8), [*crowd, *watched], budget=40, prefix_caching=True
    )
    assert core.stats().preemptions_total > 0
    assert tokens[-2:] == alone


def test_forks_get_the_tokens_of_their_seeds(make):
    _, runner = make("gemma2")
    prompt = prompts([37])[0]
    core = EngineCore(runner, SchedulerSettings(max_num_seqs=8))
    params = SamplingParams(n=3, seed=5, max_tokens=30)
    core.submit(EngineRequest(request_id="n", prompt_token_ids=prompt, params=params))
    forks: dict[int, list[int]] = {0: [], 1: [], 2: []}
    while core.has_work:
        for delta in core.step():
            forks[delta.index] += delta.token_ids
    from octavo_engine.sampling_params import resolve_seed

    for index, tokens in forks.items():
        own = SamplingParams(seed=resolve_seed(5, index), max_tokens=30)
        assert run(runner, [(prompt, own)])[0][0] == tokens
