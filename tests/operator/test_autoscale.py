"""The law that turns a load into a number of replicas."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo_operator.autoscale import (
    LoadSnapshot,
    Policy,
    ReplicaLoad,
    ScaleReason,
    Window,
    decide,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
POLICY = Policy(
    min_replicas=1,
    max_replicas=10,
    pending_per_replica=4,
    kv_use=0.8,
    window=timedelta(seconds=300),
)
IDLE = ReplicaLoad(num_pending=0, num_running=0, kv_use=0.0, max_running=8)
FULL = ReplicaLoad(num_pending=0, num_running=8, kv_use=0.1, max_running=8)


def decided(replicas, *loads, policy=POLICY, now=NOW, **known):
    return decide(policy, LoadSnapshot(replicas, loads, **known), now)


def spread(requests, kv_per_request, replicas, max_running):
    """The replicas under a constant number of requests, each with its share of a KV cache."""
    loads = []
    for replica_idx in range(replicas):
        share = requests // replicas + (replica_idx < requests % replicas)
        fits = math.floor(1 / kv_per_request) if kv_per_request else max_running
        running = min(share, max_running, max(fits, 1))
        loads.append(
            ReplicaLoad(share - running, running, min(running * kv_per_request, 1.0), max_running)
        )
    return tuple(loads)


def test_requests_that_wait_make_more_replicas_at_once():
    decision = decided(1, replace(FULL, num_pending=28))

    # 36 requests, of which a replica runs 8 and lets 4 wait.
    assert (decision.replicas, decision.reason) == (3, ScaleReason.PENDING_REQUESTS)
    assert decision.message == "from 1 to 3: requests that wait ask for 3"


def test_as_many_may_wait_as_the_target_says():
    assert decided(1, replace(FULL, num_pending=4)).reason is ScaleReason.STEADY
    assert decided(1, replace(FULL, num_pending=5)).replicas == 2


def test_full_kv_caches_make_more_replicas():
    decision = decided(2, *[replace(FULL, num_running=4, kv_use=0.9)] * 2)

    assert (decision.replicas, decision.reason) == (3, ScaleReason.KV_CACHE_USE)


def test_a_kv_cache_that_is_full_before_the_places_are_tells_the_room():
    decision = decided(1, ReplicaLoad(num_pending=20, num_running=4, kv_use=1.0, max_running=256))

    assert decision.terms.room == 4
    assert decision.replicas == 3


def test_replicas_on_order_cause_no_further_orders():
    """As long as only the first of them answers, the same load gives the same number."""
    first = decided(1, replace(FULL, num_pending=28))
    again = decided(first.replicas, replace(FULL, num_pending=28))

    assert again.replicas == first.replicas
    assert again.reason is ScaleReason.STEADY


def test_there_are_never_more_than_the_maximum():
    decision = decided(3, replace(FULL, num_pending=1000))
    assert decision.replicas == 10
    assert "maxReplicas is 10" in decision.message

    assert decided(10, replace(FULL, num_pending=1000)).reason is ScaleReason.MAX_REPLICAS


@pytest.mark.parametrize(("held", "bounded"), [(1, 2), (9, 5)])
def test_new_bounds_hold_at_once(held, bounded):
    policy = replace(POLICY, min_replicas=2, max_replicas=5)

    assert decided(held, FULL, FULL, policy=policy).replicas == bounded
    assert decided(held, policy=policy).replicas == bounded


def test_fewer_come_only_after_the_window():
    waiting = decided(3, IDLE, IDLE, IDLE)
    assert (waiting.replicas, waiting.reason) == (3, ScaleReason.STABILIZING)
    assert waiting.window == Window(NOW, 1)

    almost = NOW + timedelta(seconds=299)
    waiting = decided(3, IDLE, IDLE, IDLE, now=almost, window=waiting.window)
    assert waiting.replicas == 3

    down = decided(3, IDLE, IDLE, IDLE, now=NOW + POLICY.window, window=waiting.window)
    assert (down.replicas, down.reason, down.window) == (1, ScaleReason.LOW_DEMAND, None)


def test_the_highest_need_within_the_window_is_kept():
    calm = decided(4, *[IDLE] * 4)
    later = NOW + timedelta(seconds=60)
    busier = decided(4, FULL, FULL, IDLE, IDLE, now=later, window=calm.window)
    assert busier.window == Window(NOW, 2)

    down = decided(4, *[IDLE] * 4, now=NOW + POLICY.window, window=busier.window)
    assert down.replicas == 2


def test_a_load_that_needs_all_replicas_ends_the_window():
    assert decided(2, FULL, FULL, window=Window(NOW, 1)).window is None


def test_as_few_as_would_come_near_the_target_again_are_not_taken():
    """Nine requests wait nowhere on two replicas, and one would wait on one: two stay."""
    loads = (replace(FULL, num_running=5), replace(FULL, num_running=4))

    assert decided(2, *loads, window=Window(NOW - POLICY.window, 1)).replicas == 2


def test_missing_samples_are_not_zero():
    old_window = Window(NOW - 2 * POLICY.window, 1)
    decision = decided(3, IDLE, num_unread=2, window=old_window)
    assert (decision.replicas, decision.reason) == (3, ScaleReason.SAMPLES_MISSING)
    assert decision.window is None
    assert "2 of 3 ready replicas could not be read" in decision.message

    decision = decided(3, num_unread=3, window=old_window)
    assert (decision.replicas, decision.reason) == (3, ScaleReason.SAMPLES_MISSING)
    assert decision.terms is None


def test_what_is_read_can_make_more_though_others_are_missing():
    assert decided(2, replace(FULL, num_pending=28), num_unread=1).replicas == 3


def test_zero_is_a_value():
    done = decided(2, IDLE, IDLE, window=Window(NOW - POLICY.window, 1))
    assert done.replicas == 1


def test_a_replica_that_never_starts_keeps_no_other_and_is_no_ready_one():
    """Of three wanted one does not start: it is neither idle nor unread."""
    due = Window(NOW - POLICY.window, 1)
    waiting = replace(FULL, num_pending=4)

    assert decided(3, waiting, waiting, window=due).replicas == 3
    assert decided(3, IDLE, IDLE, window=due).replicas == 1


def test_nothing_is_decided_while_nothing_is_ready():
    decision = decided(2)
    assert (decision.replicas, decision.reason) == (2, ScaleReason.NO_READY_REPLICAS)
    assert decided(None).replicas == POLICY.min_replicas


CALM = settings(deadline=None)
"""Time on a busy machine says nothing."""

policies = st.builds(
    lambda low, more, pending, percent: Policy(
        low, low + more, pending, percent / 100, timedelta(seconds=60)
    ),
    st.integers(1, 5),
    st.integers(0, 40),
    st.integers(1, 50),
    st.integers(10, 100),
)
replica_loads = st.builds(
    ReplicaLoad,
    st.integers(0, 5000),
    st.integers(0, 512),
    st.floats(0, 1),
    st.integers(1, 512),
)
snapshots = st.builds(
    LoadSnapshot,
    st.none() | st.integers(0, 600),
    st.lists(replica_loads, max_size=6).map(tuple),
    st.sampled_from([0, 0, 0, 1, 5]),
    st.none() | st.builds(Window, st.just(NOW - timedelta(seconds=70)), st.integers(1, 50)),
)


@CALM
@given(policies, snapshots)
def test_the_bounds_hold_whatever_is_known(policy, snapshot):
    assert policy.min_replicas <= decide(policy, snapshot, NOW).replicas <= policy.max_replicas


@CALM
@given(policies, snapshots)
def test_fewer_only_after_a_window_with_all_replicas_read(policy, snapshot):
    decision = decide(policy, snapshot, NOW)
    held = policy.min_replicas if snapshot.replicas is None else snapshot.replicas
    if decision.replicas < min(held, policy.max_replicas):
        assert decision.reason is ScaleReason.LOW_DEMAND
        assert snapshot.window is not None
        assert not snapshot.num_unread


@CALM
@given(policies, snapshots, st.integers(0, 5), st.integers(1, 1000))
def test_more_load_never_means_fewer_replicas(policy, snapshot, replica_idx, more):
    if not snapshot.loads:
        return
    idx = replica_idx % len(snapshot.loads)
    loads = list(snapshot.loads)
    loads[idx] = replace(loads[idx], num_pending=loads[idx].num_pending + more)
    busier = replace(snapshot, loads=tuple(loads))

    assert decide(policy, busier, NOW).replicas >= decide(policy, snapshot, NOW).replicas


@CALM
@given(policies, st.lists(replica_loads, min_size=1, max_size=6).map(tuple))
def test_orders_are_bounded_by_the_demand(policy, loads):
    """Not more than a replica for each request, or for each share of KV cache that is held."""
    decision = decide(policy, LoadSnapshot(1, loads), NOW)
    requests = sum(load.num_pending + load.num_running for load in loads)
    by_kv_cache = math.ceil(sum(load.kv_use for load in loads) / policy.kv_use)

    assert decision.replicas <= max(policy.min_replicas, requests, by_kv_cache)


@CALM
@given(
    policies,
    st.integers(0, 600),
    st.integers(0, 400).map(lambda mille: mille / 1000),
    st.integers(1, 128),
    st.integers(1, 45),
)
def test_a_constant_load_is_answered_by_one_number(
    policy, requests, kv_per_request, max_running, begin
):
    """From wherever it begins: up to a number, or down to it, and then for ever the same."""
    replicas, window, now = begin, None, NOW
    history = [begin]
    for _ in range(120):
        loads = spread(requests, kv_per_request, replicas, max_running)
        decision = decide(policy, LoadSnapshot(replicas, loads, 0, window), now)
        replicas, window = decision.replicas, decision.window
        history.append(replicas)
        now += timedelta(seconds=10)
    steps = [b - a for a, b in pairwise(history[1:]) if a != b]
    assert all(step > 0 for step in steps) or all(step < 0 for step in steps), history
    assert len(set(history[-50:])) == 1


@CALM
@given(st.integers(2, 10), st.integers(0, 30))
def test_after_the_load_has_gone_two_windows_suffice(replicas, peak_at):
    """A peak early in a window is kept for that window; the next one has none."""
    window, now = None, NOW
    for tick in range(62):
        busy = tick == peak_at
        load = replace(FULL, num_running=8 if busy else 0)
        known = LoadSnapshot(replicas, (load,) * replicas, 0, window)
        decision = decide(POLICY, known, now)
        replicas, window = decision.replicas, decision.window
        now += timedelta(seconds=10)
    for _ in range(2 * 31):
        known = LoadSnapshot(replicas, (IDLE,) * replicas, 0, window)
        decision = decide(POLICY, known, now)
        replicas, window = decision.replicas, decision.window
        now += timedelta(seconds=10)
    assert replicas == 1
