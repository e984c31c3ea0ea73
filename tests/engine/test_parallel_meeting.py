"""Ranks that load for different times wait for each other, and know for whom."""

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from structlog.testing import capture_logs
from torch._C._distributed_c10d import HashStore

from octavo_engine.parallel import meeting
from octavo_engine.parallel.gloo_group import GlooGroup
from octavo_engine.parallel.meeting import Meeting
from octavo_engine.parallel.setup import setup_on_this_host

LIMIT_S = 60.0
GROUP_LIMIT_S = 3.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(3) as made:
        yield made


def groups(pool: ThreadPoolExecutor, limit_s: float) -> list[GlooGroup]:
    """Of two ranks."""
    store = HashStore()
    setups = [setup_on_this_host(rank, 2) for rank in range(2)]
    made = [pool.submit(GlooGroup, setup, store, limit_s) for setup in setups]
    return [group.result(LIMIT_S) for group in made]


def test_all_wait_for_the_last_one_each_time_and_each_tells_for_whom(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meeting, "_TELL_PERIOD_S", 0.0)
    store = HashStore()
    meetings = [Meeting(setup_on_this_host(rank, 3), store) for rank in range(3)]
    for late in (1, 2):
        in_time = [rank for rank in range(3) if rank != late]
        with capture_logs() as logs:
            waiting = {rank: pool.submit(meetings[rank].wait) for rank in in_time}
            wanted = {(rank, late) for rank in in_time}
            wait_for(wanted, logs)
            assert not any(wait.done() for wait in waiting.values())
            meetings[late].wait()
            for wait in waiting.values():
                wait.result(LIMIT_S)


def wait_for(wanted: set[tuple[int, int]], logs: Sequence[Mapping[str, Any]]) -> None:
    """Until it is told who waits for which one other rank."""
    deadline_s = time.monotonic() + LIMIT_S
    while not wanted <= told(logs):
        assert time.monotonic() < deadline_s, f"told: {told(logs)}"
        time.sleep(0.01)


def told(logs: Sequence[Mapping[str, Any]]) -> set[tuple[int, int]]:
    missing = [(entry["rank"], entry["missing"]) for entry in list(logs)]
    return {(rank, ranks[0]) for rank, ranks in missing if len(ranks) == 1}


def test_ranks_that_load_longer_than_a_call_may_last_are_waited_for(
    pool: ThreadPoolExecutor,
) -> None:
    first, late = groups(pool, GROUP_LIMIT_S)
    found = pool.submit(first.smallest, 7)
    time.sleep(1.5 * GROUP_LIMIT_S)
    assert late.smallest(5) == 5
    assert found.result(LIMIT_S) == 5


def test_a_rank_that_ends_while_others_wait_ends_the_wait(pool: ThreadPoolExecutor) -> None:
    first, late = groups(pool, 300.0)
    found: Future[int] = pool.submit(first.smallest, 7)
    del late  # with its connections
    with pytest.raises(RuntimeError, match=r"Connection (closed|reset) by peer"):
        found.result(LIMIT_S)
