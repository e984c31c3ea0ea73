"""Forks, priorities, preemption, swap and the latency target, over the checking fake runner."""

import pytest
from tests.engine.core_driver import Driver, greedy, prompt_of
from tests.engine.fake_runner import FULL, FakeRunner

from octavo_engine.batch import Batch, KVGroup
from octavo_engine.config import SchedulerSettings
from octavo_engine.sampling_params import SamplingParams

WINDOW = KVGroup((1,), 24)


def settings(**fields: object) -> SchedulerSettings:
    return SchedulerSettings(**fields)  # type: ignore[arg-type]  # fields of several types


def pages_in_use(driver: Driver) -> int:
    return driver.core.stats().kv_blocks_used


# Forks.


@pytest.mark.parametrize("length", [1, 16, 17, 30, 32, 33])
@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW)])
@pytest.mark.parametrize("prefix_caching", [True, False])
def test_forks_differ_by_seed_and_match_the_reference(length, groups, prefix_caching):
    driver = Driver(FakeRunner(kv_groups=groups), prefix_caching=prefix_caching)
    params = SamplingParams(n=4, seed=5, max_tokens=20)
    request = driver.submit("a", prompt_of(length), params)
    driver.run()
    driver.check_tokens(request)
    assert len({tuple(driver.tokens["a", i]) for i in range(4)}) == 4


def test_forks_share_the_prompts_pages_without_the_prefix_cache():
    runner = FakeRunner(batches=[])
    driver = Driver(runner, prefix_caching=False)
    driver.submit("a", prompt_of(100), SamplingParams(n=4, max_tokens=8))
    driver.step(4)
    # 100 tokens are 6 full pages and a rest: the full ones once, the rest for each.
    assert pages_in_use(driver) == 6 + 4
    copies = [copy for batch in runner.batches for copy in batch.copies]
    assert len(copies) == 3
    assert len({copy.src for copy in copies}) == 1
    driver.run()


def test_forks_of_a_prompt_that_fills_its_pages_copy_the_last_one():
    runner = FakeRunner(batches=[])
    driver = Driver(runner)
    driver.submit("a", prompt_of(32), SamplingParams(n=2, max_tokens=4))
    driver.run()
    # The last prompt token is computed again, into a page of the fork's own.
    assert sum(len(batch.copies) for batch in runner.batches) == 1


def test_a_fork_with_nothing_else_in_its_last_page_copies_nothing():
    runner = FakeRunner(batches=[])
    driver = Driver(runner)
    driver.submit("a", prompt_of(33), SamplingParams(n=2, max_tokens=4))
    driver.run()
    assert sum(len(batch.copies) for batch in runner.batches) == 0


def test_more_sequences_than_rows_all_finish():
    driver = Driver(FakeRunner(max_num_seqs=2), settings(max_num_batched_tokens=16))
    request = driver.submit("a", prompt_of(40), SamplingParams(n=9, max_tokens=6))
    driver.run()
    driver.check_tokens(request)


def test_an_abort_ends_waiting_blocked_and_running_forks_alike():
    driver = Driver(FakeRunner(max_num_seqs=2), settings(max_num_batched_tokens=16))
    driver.submit("a", prompt_of(40), SamplingParams(n=5, max_tokens=50))
    driver.step(2)
    driver.core.abort("a")
    driver.run()
    assert [driver.reason("a", i) for i in range(5)] == ["abort"] * 5


# Priority.


def first_token_order(driver: Driver) -> list[str]:
    return [request_id for (request_id, _), tokens in driver.tokens.items() if tokens]


def test_lower_priority_values_go_first_and_equal_ones_in_order_of_arrival():
    driver = Driver(FakeRunner(max_num_seqs=1))
    for name, priority in [("a", 5), ("b", 0), ("c", 5), ("d", 0)]:
        driver.submit(name, prompt_of(5), greedy(3), priority=priority)
    driver.run()
    assert first_token_order(driver) == ["b", "d", "a", "c"]


def test_waiting_is_worth_priority():
    driver = Driver(FakeRunner(max_num_seqs=1), settings(priority_ageing_s=10.0))
    driver.submit("busy", prompt_of(5), greedy(20))
    driver.step()
    driver.submit("old", prompt_of(5, 1), greedy(3), priority=2)
    driver.now_s += 25.0
    driver.submit("new", prompt_of(5, 2), greedy(3), priority=0)
    driver.run()
    assert first_token_order(driver) == ["busy", "old", "new"]


def test_a_stream_of_urgent_requests_does_not_starve_the_others():
    driver = Driver(FakeRunner(max_num_seqs=1), settings(priority_ageing_s=1.0))
    patient = driver.submit("patient", prompt_of(5), greedy(5), priority=3)
    for i in range(200):
        driver.submit(f"urgent{i}", prompt_of(5, i), greedy(2))
        driver.now_s += 0.1
        driver.step(2)
        if ("patient", 0) in driver.ends:
            break
    assert ("patient", 0) in driver.ends
    assert 20 < i < 60
    driver.run()
    driver.check_tokens(patient)


def test_an_urgent_request_takes_the_row_of_a_batch_request():
    driver = Driver(FakeRunner(max_num_seqs=2))
    batch = [driver.submit(f"batch{i}", prompt_of(5, i), greedy(300), priority=9) for i in (0, 1)]
    driver.step(5)
    urgent = driver.submit("urgent", prompt_of(5, 7), greedy(5))
    driver.step(4)
    assert driver.tokens["urgent", 0]
    driver.run()
    assert driver.core.stats().preemptions_total == 1
    for request in [*batch, urgent]:
        driver.check_tokens(request)


def test_equal_priorities_never_take_each_others_place():
    driver = Driver(FakeRunner(max_num_seqs=2))
    for i in range(10):
        driver.submit(str(i), prompt_of(5, i), greedy(20))
        driver.step()
    driver.run()
    assert driver.core.stats().preemptions_total == 0


# Pages.


def test_the_oldest_request_is_never_preempted():
    runner = FakeRunner(num_blocks=14, batches=[])
    driver = Driver(runner)
    for i in range(6):
        driver.submit(str(i), prompt_of(20, i), greedy(100))
    driver.run()
    assert driver.core.stats().preemptions_total > 3
    first_prompt = prompt_of(20, 0)
    admissions = [
        row
        for batch in runner.batches
        for row in batch.admitted
        if row.token_ids[:20] == first_prompt
    ]
    assert len(admissions) == 1


def test_window_layers_give_back_pages_that_left_the_window():
    driver = Driver(FakeRunner(kv_groups=(WINDOW,), num_blocks=64), prefix_caching=False)
    request = driver.submit("a", prompt_of(40), greedy(600))
    most = 0
    while driver.core.has_work:
        driver.step()
        most = max(most, pages_in_use(driver))
    assert most <= 40 // 16 + 1 + 3
    driver.settle()
    driver.check_tokens(request)


def test_a_long_prompt_passes_through_a_window_larger_than_no_pool():
    # 640 tokens are 40 pages, the pool has 9: only the window and a chunk are ever held.
    driver = Driver(
        FakeRunner(kv_groups=(WINDOW,), num_blocks=10), settings(max_num_batched_tokens=32)
    )
    request = driver.submit("a", prompt_of(640), greedy(20))
    driver.run()
    driver.check_tokens(request)


def test_the_context_is_what_the_pages_hold():
    driver = Driver(FakeRunner(num_blocks=5, block_size=16))
    assert driver.core.info.max_model_len == 64
    requests = [
        driver.submit("a", prompt_of(15), greedy(49)),
        driver.submit("b", prompt_of(64), greedy(0)),
    ]
    driver.run()
    for request in requests:
        driver.check_tokens(request)


# Swap.


def swapping(num_host_blocks: int, **fields: object) -> Driver:
    runner = FakeRunner(num_blocks=14, num_host_blocks=num_host_blocks, batches=[], **fields)  # type: ignore[arg-type]  # fields of several types
    driver = Driver(runner, prefix_caching=False)
    for i in range(6):
        driver.submit(str(i), prompt_of(20, i), greedy(100))
    return driver


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,)])
def test_swapped_sequences_come_back_without_recomputing(groups):
    driver = swapping(200, kv_groups=groups)
    requests = [r.spec for r in driver.core._scheduler.state.requests.values()]
    driver.run()
    runner = driver.runner
    num_prefilled = sum(
        w.num_tokens for b in runner.batches or [] for w in b.work if w.phase == "prefill"
    )
    num_swaps_in = sum(bool(b.swap_in) for b in runner.batches or [])
    assert num_swaps_in > 0
    # Each prompt once; coming back costs the one token whose step was in flight.
    assert num_prefilled <= 6 * 20 + driver.core.stats().preemptions_total
    for request in requests:
        driver.check_tokens(request)


def test_a_full_swap_space_falls_back_to_recomputing():
    driver = swapping(4)
    requests = [r.spec for r in driver.core._scheduler.state.requests.values()]
    driver.run()
    counters = driver.core._scheduler.state.counters
    assert counters.swapped_out < counters.preemptions
    for request in requests:
        driver.check_tokens(request)


def test_pages_that_came_back_from_the_host_are_found_again():
    runner = FakeRunner(num_blocks=8, num_host_blocks=50, batches=[])
    driver = Driver(runner)
    for i in range(2):
        driver.submit(str(i), prompt_of(33, i), greedy(40))
    driver.run()
    assert any(batch.swap_in for batch in runner.batches or [])
    driver.submit("again", prompt_of(33, 1), greedy(2))
    driver.run()
    assert driver.ends["again", 0].num_cached_tokens == 32


def test_an_abort_while_swapped_out_gives_the_host_pages_back():
    driver = swapping(200)
    state = driver.core._scheduler.state
    while not any(seq.host_tables for seq in state.queue):
        driver.step()
    for request_id in list(state.requests):
        driver.core.abort(request_id)
    driver.run()
    assert state.host_pool is not None
    assert state.host_pool.num_used == 0


# Logprobs.


@pytest.mark.parametrize("budget", [9, 64])
def test_prompt_logprobs_come_once_and_complete_although_the_prefix_is_cached(budget):
    driver = Driver(FakeRunner(), settings(max_num_batched_tokens=budget))
    driver.submit("warm", prompt_of(50))
    driver.run()
    driver.submit("a", prompt_of(50), SamplingParams(n=2, prompt_logprobs=1, logprobs=2))
    driver.run()
    sent = [d for d in driver.deltas["a"] if d.prompt_logprobs is not None]
    assert [(d.index, len(d.prompt_logprobs or [])) for d in sent] == [(0, 50)]
    first, *rest = sent[0].prompt_logprobs or []
    assert first is None
    assert [p.chosen.token_id for p in rest if p] == prompt_of(50)[1:]
    assert [p.chosen.logprob for p in rest if p] == [-at / 7 for at in range(1, 50)]
    assert driver.ends["a", 0].num_cached_tokens == 0
    for delta in driver.deltas["a"]:
        assert [p.chosen.token_id for p in delta.logprobs or []] == delta.token_ids


def test_prompt_logprobs_survive_a_preemption():
    driver = Driver(FakeRunner(num_blocks=8, max_num_seqs=3), settings(max_num_batched_tokens=8))
    for i in range(3):
        driver.submit(str(i), prompt_of(40, i), greedy(40, prompt_logprobs=0))
    driver.run()
    assert driver.core.stats().preemptions_total > 0
    for i in range(3):
        sent = [d.prompt_logprobs for d in driver.deltas[str(i)] if d.prompt_logprobs is not None]
        assert [len(p) for p in sent] == [40]


# Latency target.


def step_seconds(batch: Batch) -> float:
    """A machine: 4 ms a step, 20 us a prefill token, 50 us a decode."""
    prefill = sum(work.num_tokens for work in batch.work if work.phase == "prefill")
    decodes = sum(work.phase == "decode" for work in batch.work)
    return 0.004 + 20e-6 * prefill + 50e-6 * decodes


class Clockwork(FakeRunner):
    """Reports the machine's times without taking them."""

    def launch(self, batch: Batch):  # type: ignore[no-untyped-def]  # the base class has the type
        handle = super().launch(batch)
        handle.ready = lambda: None
        return handle


def test_prefill_shrinks_and_grows_with_the_latency_target():
    runner = Clockwork(num_blocks=2000, max_num_seqs=40, step_seconds=step_seconds, batches=[])
    limits = settings(target_itl_ms=20.0, max_num_batched_tokens=4096)
    driver = Driver(runner, limits, prefix_caching=False)
    for i in range(4):
        driver.submit(f"stream{i}", prompt_of(8, i), greedy(900))
    driver.step(20)
    for i in range(12):
        driver.submit(f"long{i}", prompt_of(1500, i), greedy(2))
    driver.step(10)
    assert runner.batches is not None
    runner.batches.clear()
    driver.step(15)
    times_s = [step_seconds(batch) for batch in runner.batches if len(batch.work) > 4]
    assert times_s
    assert max(times_s) <= 0.020
    assert max(times_s) >= 0.014, "the target is used, not only kept"
    for request_id in list(driver.core._scheduler.state.requests):
        driver.core.abort(request_id)
    driver.run()


def test_prefill_goes_on_where_the_target_cannot_be_kept():
    runner = Clockwork(num_blocks=2000, step_seconds=lambda batch: 0.5)
    driver = Driver(runner, settings(target_itl_ms=5.0))
    streams = [driver.submit(str(i), prompt_of(8, i), greedy(200)) for i in range(3)]
    driver.step(10)
    late = driver.submit("late", prompt_of(300, 9), greedy(2))
    driver.run()
    for request in [*streams, late]:
        driver.check_tokens(request)
