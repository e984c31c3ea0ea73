"""Each service waits at most once and runs at most once at a time."""

import asyncio
import time

import pytest

from octavo_operator import workqueue
from octavo_operator.workqueue import WorkQueue

A, B = ("team", "a"), ("team", "b")


async def drained(queue):
    taken = []
    while len(queue):
        key, _ = await queue.take()
        taken.append(key)
    return taken


async def test_many_wakes_are_one():
    queue = WorkQueue()
    for key in (A, B, A, A):
        queue.wake(key)

    assert await drained(queue) == [A, B]


async def test_a_wake_during_a_reconcile_is_served_afterwards():
    queue = WorkQueue()
    queue.wake(A)
    key, _ = await queue.take()
    queue.wake(A)
    assert len(queue) == 0, "not by a second worker at the same time"

    queue.done(key)

    assert await drained(queue) == [A]


async def test_the_wait_is_told():
    queue = WorkQueue()
    before_s = time.monotonic()
    queue.wake(A)
    woken_s = time.monotonic()
    await asyncio.sleep(0.02)

    taken_s = time.monotonic()
    _, waited_s = await queue.take()
    assert taken_s - woken_s <= waited_s <= time.monotonic() - before_s


async def test_failures_back_off_and_success_forgets_them(monkeypatch):
    monkeypatch.setattr(workqueue, "FIRST_BACKOFF_S", 0.001)
    queue = WorkQueue()
    queue.wake(A)
    delays = []
    for _ in range(3):
        key, _ = await queue.take()
        delays.append(queue.failed(key))
    key, _ = await queue.take()
    queue.done(key)
    queue.wake(A)
    key, _ = await queue.take()
    delays.append(queue.failed(key))

    assert delays == [0.001, 0.002, 0.004, 0.001]


async def test_the_back_off_has_a_longest(monkeypatch):
    monkeypatch.setattr(workqueue, "LONGEST_BACKOFF_S", 0.001)
    queue = WorkQueue()
    for _ in range(3):
        queue.wake(A)
        key, _ = await queue.take()
        assert queue.failed(key) == 0.001


async def test_the_servers_wish_is_a_floor():
    queue = WorkQueue()
    queue.wake(A)
    key, _ = await queue.take()

    assert queue.failed(key, at_least_s=7.0) == 7.0


async def test_of_two_later_wakes_the_earlier_counts():
    queue = WorkQueue()
    queue.wake_later(A, 0.01)
    queue.wake_later(A, 60)

    assert (await asyncio.wait_for(queue.take(), 5))[0] == A


async def test_a_later_wake_comes():
    queue = WorkQueue()
    queue.wake_later(A, 0.01)
    assert len(queue) == 0

    async with asyncio.timeout(5):
        assert (await queue.take())[0] == A


@pytest.mark.parametrize("num_services", [50])
async def test_nothing_is_kept_of_services_that_are_done(num_services):
    queue = WorkQueue()
    for service_idx in range(num_services):
        queue.wake(("team", str(service_idx)))
    for key in await drained(queue):
        queue.done(key)

    assert queue._entries == {}


async def test_no_event_comes_before_the_time_that_the_server_asked_for():
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.wake(A)

    assert queue.failed(A, 0.05) == workqueue.FIRST_BACKOFF_S
    queue.wake(A)
    queue.wake_later(A, 0.0)
    await asyncio.sleep(0.01)
    assert len(queue) == 0

    key, _ = await asyncio.wait_for(queue.take(), timeout=5)
    queue.done(key)
    assert await drained(queue) == []


async def test_an_event_brings_the_next_try_after_another_failure_at_once():
    queue = WorkQueue()
    queue.wake(A)
    await queue.take()
    queue.failed(A)

    queue.wake(A)
    assert len(queue) == 1
