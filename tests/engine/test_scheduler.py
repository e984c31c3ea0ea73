"""The scheduler through the core, over the fake runner that checks every page and token."""

import pytest
from tests.engine.core_driver import Driver, greedy, prompt_of
from tests.engine.fake_runner import EOS, FULL, FakeRunner

from octavo_engine.batch import KVGroup
from octavo_engine.config import SchedulerSettings
from octavo_engine.errors import PromptTooLong
from octavo_engine.sampling_params import SamplingParams

WINDOW = KVGroup((1,), 24)


def settings(**fields: object) -> SchedulerSettings:
    return SchedulerSettings(**fields)  # type: ignore[arg-type]  # fields of several types


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW)])
@pytest.mark.parametrize("budget", [9, 16, 64])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
def test_one_request_gets_the_reference_tokens(groups, budget, length):
    driver = Driver(FakeRunner(kv_groups=groups), settings(max_num_batched_tokens=budget))
    request = driver.submit("a", prompt_of(length), greedy(40))
    driver.run()
    driver.check_tokens(request)
    assert driver.reason("a") == "length"


def test_many_requests_together_get_the_tokens_they_get_alone():
    driver = Driver(FakeRunner(num_blocks=40), settings(max_num_batched_tokens=20))
    requests = [driver.submit(str(i), prompt_of(5 + 11 * i, i), greedy(30)) for i in range(12)]
    driver.run()
    for request in requests:
        driver.check_tokens(request)


def test_a_sequence_whose_last_token_is_on_its_way_takes_nothing_of_the_budget():
    """A step of a round number of tokens is what matrix products are fast at."""
    runner = FakeRunner(batches=[])
    driver = Driver(runner, settings(max_num_batched_tokens=16))
    for i in range(6):
        driver.submit(str(i), prompt_of(8, i), greedy(1))
    driver.run()
    sizes = [sum(work.num_tokens for work in batch.work) for batch in runner.batches if batch.work]
    assert sizes == [16, 16, 16]


def test_a_small_pool_preempts_and_changes_no_token():
    driver = Driver(FakeRunner(num_blocks=12), settings(max_num_batched_tokens=32))
    requests = [driver.submit(str(i), prompt_of(20, i), greedy(60)) for i in range(6)]
    driver.run()
    assert driver.core.stats().preemptions_total > 0
    for request in requests:
        driver.check_tokens(request)


def test_every_running_sequence_decodes_in_every_step_beside_a_long_prefill():
    runner = FakeRunner(num_blocks=200, batches=[])
    driver = Driver(runner, settings(max_num_batched_tokens=24))
    for i in range(4):
        driver.submit(str(i), prompt_of(4, i), greedy(100))
    driver.step(3)
    runner.batches.clear()
    driver.submit("long", prompt_of(400, 9), greedy(2))
    driver.step(15)
    for batch in runner.batches:
        phases = [work.phase for work in batch.work]
        assert phases.count("decode") == 4
        assert sum(work.num_tokens for work in batch.work) <= 24
    assert any(work.phase == "prefill" for batch in runner.batches for work in batch.work)
    driver.core.abort("long")
    driver.run()


def test_eos_ends_with_stop_and_one_wasted_token_is_not_delivered():
    driver = Driver(FakeRunner())
    params = greedy(900, eos_token_ids=[EOS])
    request = driver.submit("a", prompt_of(10), params)
    driver.run()
    driver.check_tokens(request)
    assert driver.reason("a") == "stop"
    assert driver.ends["a", 0].stop_reason is None
    assert driver.tokens["a", 0][-1] == EOS


def test_sampled_tokens_depend_on_the_seed_alone():
    params = SamplingParams(seed=42, max_tokens=50)
    alone = Driver(FakeRunner(), prefix_caching=False)
    alone.submit("a", prompt_of(30), params)
    alone.run()
    crowd = Driver(FakeRunner(num_blocks=16), settings(max_num_batched_tokens=40))
    for i in range(15):
        crowd.submit(f"other{i}", prompt_of(20, i), SamplingParams(seed=i, max_tokens=40))
    crowd.submit("a", prompt_of(30), params)
    crowd.run()
    assert crowd.core.stats().preemptions_total > 0
    assert crowd.tokens["a", 0] == alone.tokens["a", 0]


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW)])
def test_a_prefix_hit_at_every_split_point_changes_no_token(groups):
    base = prompt_of(70)
    for split in range(1, 70):
        driver = Driver(FakeRunner(kv_groups=groups), settings(max_num_batched_tokens=33))
        driver.submit("warm", base, greedy(3))
        driver.run()
        request = driver.submit("hit", base[:split] + prompt_of(20, 5), greedy(20))
        again = driver.submit("whole", base, greedy(20))
        driver.run()
        driver.check_tokens(request)
        driver.check_tokens(again)
        hit = driver.ends["whole", 0].num_cached_tokens
        assert hit == 64, "all full pages before the last token"


@pytest.mark.parametrize("groups", [(FULL,), (WINDOW,), (FULL, WINDOW)])
def test_prompts_of_one_step_share_the_pages_that_it_writes(groups):
    runner = FakeRunner(kv_groups=groups, batches=[])
    driver = Driver(runner, settings(max_num_batched_tokens=100))
    requests = [
        driver.submit(name, prompt_of(70) + prompt_of(5, seed), greedy(20))
        for seed, name in enumerate(["first", "second", "third"], start=1)
    ]
    driver.step()
    assert len(runner.batches[0].work) == 3, "75 tokens and twice the 11 behind four pages"
    driver.run()
    for request in requests:
        driver.check_tokens(request)
    cached = [driver.ends[request.request_id, 0].num_cached_tokens for request in requests]
    assert cached == [0, 64, 64]


def test_a_full_hit_still_computes_the_last_prompt_token():
    driver = Driver(FakeRunner())
    driver.submit("warm", prompt_of(64), greedy(3))
    driver.run()
    driver.submit("hit", prompt_of(64), greedy(3))
    driver.run()
    assert driver.ends["hit", 0].num_cached_tokens == 48
    assert driver.tokens["hit", 0] == driver.tokens["warm", 0]


def test_salts_keep_prefixes_apart():
    driver = Driver(FakeRunner())
    driver.submit("warm", prompt_of(64), salt="one")
    driver.run()
    driver.submit("other", prompt_of(64), salt="two")
    driver.submit("none", prompt_of(64))
    driver.submit("same", prompt_of(64), salt="one")
    driver.run()
    cached = {name: driver.ends[name, 0].num_cached_tokens for name in ("other", "none", "same")}
    assert cached == {"other": 0, "none": 0, "same": 48}


def test_no_token_is_computed_after_the_last_one_that_can_be_delivered():
    runner = FakeRunner(batches=[])
    driver = Driver(runner)
    driver.submit("a", prompt_of(10), greedy(5))
    driver.run()
    work = [work for batch in runner.batches or [] for work in batch.work]
    assert [(w.start, w.num_tokens) for w in work] == [(0, 10), (10, 1), (11, 1), (12, 1), (13, 1)]


@pytest.mark.parametrize("length", [1, 16, 50, 96])
def test_no_tokens_asked_for_computes_the_prompt_and_its_logprobs(length):
    """Also of a prompt that fills the whole context."""
    runner = FakeRunner(max_model_len=96, batches=[])
    driver = Driver(runner, settings(max_num_batched_tokens=40))
    params = greedy(0, n=2, prompt_logprobs=1, logprobs=0)
    driver.submit("a", prompt_of(length), params)
    driver.run()
    assert driver.tokens == {("a", 0): [], ("a", 1): []}
    assert {driver.reason("a", index) for index in (0, 1)} == {"length"}
    (logprobs,) = [d.prompt_logprobs for d in driver.deltas["a"] if d.prompt_logprobs is not None]
    assert len(logprobs) == length
    assert driver.core.stats().generation_tokens_total == 0
    last = [work for batch in runner.batches or [] for work in batch.work][-1]
    assert last.start + last.num_tokens == length


def test_a_prompt_that_fills_the_context_leaves_no_room_for_a_token():
    driver = Driver(FakeRunner(max_model_len=96))
    with pytest.raises(PromptTooLong, match="and at least one output token"):
        driver.submit("a", prompt_of(96), greedy(1))
    with pytest.raises(PromptTooLong, match=r"must hold the prompt$"):
        driver.submit("a", prompt_of(97), greedy(0))
