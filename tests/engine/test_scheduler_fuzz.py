"""Hypothesis against the scheduler: any traffic over any small pool keeps every promise.

Each example is a pool, a set of limits and a list of arrivals and aborts between steps. The fake
runner checks every page and token; here the streams are checked against the reference, the pages
are counted after every step, and everything must end within a bound on the number of steps.
"""

import itertools
from collections import Counter
from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.engine.core_driver import Driver
from tests.engine.fake_runner import EOS, FULL, FakeRunner

from octavo_engine.batch import Batch, KVGroup
from octavo_engine.config import SchedulerSettings
from octavo_engine.errors import RequestError
from octavo_engine.sampling_params import SamplingParams

NUM_STEPS = 200_000
EXAMPLES_A_ROUND = 300
WHAT_SHOULD_HAPPEN = (
    "abort",
    "error",
    "length",
    "stop",
    "preempted",
    "swapped",
    "prefix hits",
    "forks by copy",
    "computed anew",
)


@dataclass(frozen=True)
class Pool:
    block_size: int
    num_blocks: int
    num_host_blocks: int
    groups: tuple[KVGroup, ...]
    max_num_seqs: int
    budget: int
    prefix_caching: bool
    fails_rows: bool
    original_context_len: int | None
    restarts: bool
    """Whether a sequence that outgrows that length is computed anew."""


@dataclass(frozen=True)
class Arrival:
    gap: int
    """Steps before it."""
    family: int
    """Prompts of a family begin alike."""
    shared: int
    own: int
    max_tokens: int
    n: int
    priority: int
    salt: str | None
    seed: int | None
    stops_at_eos: bool
    prompt_logprobs: int | None
    ends_early: int
    """0: never; else it is aborted (odd) or finished by its text (even) this many steps later."""


def windows(block_size: int) -> st.SearchStrategy[KVGroup]:
    return st.integers(1, 3 * block_size).map(lambda window: KVGroup((1,), window))


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    groups = draw(
        st.one_of(
            st.just((FULL,)),
            st.tuples(windows(block_size)),
            st.tuples(st.just(FULL), windows(block_size)),
            st.tuples(windows(block_size), st.just(FULL), windows(block_size)),
        )
    )
    max_num_seqs = draw(st.integers(1, 6))
    return Pool(
        block_size=block_size,
        num_blocks=draw(st.integers(6, 48)),
        num_host_blocks=draw(st.sampled_from([0, 0, 5, 30])),
        groups=groups,
        max_num_seqs=max_num_seqs,
        budget=max_num_seqs + draw(st.sampled_from([1, 3, 8, 40])),
        prefix_caching=draw(st.booleans()),
        fails_rows=draw(st.sampled_from([False, False, False, True])),
        original_context_len=draw(st.none() | st.integers(3, 60)),
        restarts=draw(st.booleans()),
    )


# A draw costs as much as a step of the scheduler: what has few values is drawn together.
TIMES = list(itertools.product([0, 0, 1, 5, 20], range(3), [0, 0, 0, 1, 2, 3, 8, 9]))
"""Gap, family, steps to an early end."""
WISHES = list(
    itertools.product(
        [1, 1, 1, 2, 3],
        range(-1, 3),
        [None, None, "a"],
        [None, 3],
        [False, True],
        [None, None, None, 2],
    )
)
"""n, priority, salt, seed, whether it stops, prompt logprobs."""


@st.composite
def arrivals(draw: st.DrawFn) -> Arrival:
    gap, family, ends_early = draw(st.sampled_from(TIMES))
    n, priority, salt, seed, stops_at_eos, prompt_logprobs = draw(st.sampled_from(WISHES))
    return Arrival(
        gap=gap,
        family=family,
        shared=draw(st.integers(0, 40)),
        own=draw(st.integers(0, 12)),
        max_tokens=draw(st.integers(0, 40)),
        n=n,
        priority=priority,
        salt=salt,
        seed=seed,
        stops_at_eos=stops_at_eos,
        prompt_logprobs=prompt_logprobs,
        ends_early=ends_early,
    )


def fail_some(batch: Batch) -> dict[int, str]:
    return {batch.work[0].row: "unlucky"} if batch.work and batch.step_id % 23 == 0 else {}


class Traffic:
    """One example on its way through the core."""

    def __init__(self, pool: Pool) -> None:
        runner = FakeRunner(
            num_blocks=pool.num_blocks,
            block_size=pool.block_size,
            kv_groups=pool.groups,
            max_num_seqs=pool.max_num_seqs,
            num_host_blocks=pool.num_host_blocks,
            max_model_len=200,
            original_context_len=pool.original_context_len,
            restart_len=pool.original_context_len if pool.restarts else None,
            fail_rows=fail_some if pool.fails_rows else lambda batch: {},
        )
        self.driver = Driver(
            runner,
            SchedulerSettings(max_num_batched_tokens=pool.budget, priority_ageing_s=0.1),
            prefix_caching=pool.prefix_caching,
        )
        self.requests = []
        self.early: dict[int, list[str]] = {}
        self.num_steps = 0
        self.step_limit = 200

    def arrive(self, arrival: Arrival) -> None:
        for _ in range(arrival.gap):
            self.step()
        request_id = str(len(self.requests))
        shared = [(arrival.family * 29 + i * 5) % 90 + 3 for i in range(arrival.shared)]
        own = [(len(self.requests) * 13 + i * 7) % 90 + 3 for i in range(arrival.own)]
        params = SamplingParams(
            n=arrival.n,
            max_tokens=arrival.max_tokens,
            temperature=0.0 if arrival.seed is None else 1.0,
            seed=arrival.seed,
            eos_token_ids=[EOS, 5, 9] if arrival.stops_at_eos else [],
            prompt_logprobs=arrival.prompt_logprobs,
        )
        prompt = shared + own
        try:
            request = self.driver.submit(
                request_id, prompt, params, priority=arrival.priority, salt=arrival.salt
            )
        except RequestError:
            door = self.driver.core.door
            assert not prompt or len(prompt) + arrival.max_tokens > door.max_model_len
            return
        self.requests.append(request)
        self.step_limit += 20 * arrival.n * (len(prompt) + arrival.max_tokens)
        if arrival.ends_early:
            self.early.setdefault(self.num_steps + arrival.ends_early, []).append(request_id)

    def step(self) -> None:
        for request_id in self.early.pop(self.num_steps, []):
            if self.num_steps % 2:
                self.driver.core.abort(request_id)
            else:
                self.driver.core.finish(request_id, 0, "text")
        self.driver.step()
        self.driver.core.check_integrity()
        self.num_steps += 1

    def finish(self) -> None:
        while self.driver.core.has_work:
            assert self.num_steps < self.step_limit, "something starves"
            self.step()
        self.driver.settle()
        num_ended = sum(self.driver.core.stats().finished_total.values())
        assert num_ended == sum(request.params.n for request in self.requests)
        for request in self.requests:
            cut_short = self.driver.ends[request.request_id, 0].stop_reason == "text"
            if not cut_short:
                self.driver.check_tokens(request)

    def what_happened(self) -> dict[str, int]:
        stats = self.driver.core.stats()
        return {
            **stats.finished_total,
            "preempted": stats.preemptions_total,
            "swapped": self.driver.runner.num_swapped_out,
            "prefix hits": stats.prefix_hits_tokens_total,
            "forks by copy": self.driver.runner.num_copied,
            "computed anew": self.driver.runner.num_restarted,
        }


def test_any_traffic_ends_with_the_right_tokens_and_balanced_pages():
    num_steps = 0
    seen: Counter[str] = Counter()

    @settings(
        max_examples=EXAMPLES_A_ROUND,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(pools(), st.lists(arrivals(), min_size=1, max_size=30))
    def one_round(pool: Pool, events: list[Arrival]) -> None:
        nonlocal num_steps
        traffic = Traffic(pool)
        for arrival in events:
            traffic.arrive(arrival)
        traffic.finish()
        num_steps += traffic.num_steps
        seen.update(traffic.what_happened())

    while num_steps < NUM_STEPS:
        one_round()
    # The promises are worth something only if all of this really happened.
    assert all(seen[what] > 100 for what in WHAT_SHOULD_HAPPEN), dict(seen)
