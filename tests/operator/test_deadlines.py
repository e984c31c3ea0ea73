"""Pods that stay in a phase for longer than it may last."""

from datetime import UTC, datetime

import pytest

from octavo_operator.deadlines import is_starting, limits, next_in_s, overdue
from octavo_operator.reasons import Reason

LIMITS = limits(90)
SCHEDULED = {"type": "PodScheduled", "status": "True"}


def at(second):
    return datetime(2026, 1, 1, 0, second // 60, second % 60, tzinfo=UTC)


def stamp(second):
    return at(second).strftime("%Y-%m-%dT%H:%M:%SZ")


def running(since, **more):
    return [{"state": {"running": {"startedAt": stamp(since)}}, **more}]


def ended(at_second):
    return [{"ready": True, "state": {"terminated": {"finishedAt": stamp(at_second)}}}]


@pytest.fixture
def pod(pod_body):
    def made_at_0(**given):
        metadata = {"creationTimestamp": stamp(0), **given.pop("metadata", {})}
        return pod_body(metadata=metadata, **given)

    return made_at_0


def test_the_time_is_shared_out():
    limited = (LIMITS.start, LIMITS.fetch, LIMITS.load)
    assert [limit.total_seconds() for limit in limited] == [30, 60, 60]


@pytest.mark.parametrize(
    ("status", "end", "sentence"),
    [
        ({}, 30, "waits for a node for more than 30 s"),
        ({"conditions": [SCHEDULED]}, 30, "starts its container for more than 30 s"),
        (
            {"conditions": [SCHEDULED], "initContainerStatuses": running(since=20)},
            80,
            "fetches its model for more than 60 s",
        ),
        (
            {"conditions": [SCHEDULED], "initContainerStatuses": ended(at_second=70)},
            100,
            "starts its container for more than 30 s",
        ),
        (
            {
                "conditions": [SCHEDULED],
                "initContainerStatuses": ended(at_second=70),
                "containerStatuses": running(since=75),
            },
            135,
            "loads its model for more than 60 s",
        ),
    ],
)
def test_each_phase_has_an_end(pod, status, end, sentence):
    given = pod(**status)

    assert overdue(given, LIMITS, at(end - 1)) is None
    assert next_in_s([given], LIMITS, at(end - 1)) == 1
    told = overdue(given, LIMITS, at(end))
    assert (told.reason, told.sentence) == (Reason.PROGRESS_DEADLINE_EXCEEDED, sentence)
    assert next_in_s([given], LIMITS, at(end)) is None


@pytest.mark.parametrize(
    "status",
    [
        {"conditions": [{"type": "Ready", "status": "True"}]},
        {"containerStatuses": running(since=1, started=True)},
        {"phase": "Failed"},
    ],
    ids=["answers", "has answered", "is over"],
)
def test_what_has_arrived_is_not_on_its_way(pod, status):
    given = pod(**status)

    assert overdue(given, LIMITS, at(500)) is None
    assert next_in_s([given], LIMITS, at(0)) is None


def test_a_pod_that_should_have_gone_is_told(pod):
    given = pod(metadata={"deletionTimestamp": stamp(100)})

    assert overdue(given, LIMITS, at(159)) is None
    told = overdue(given, LIMITS, at(160))
    assert told.reason is Reason.TERMINATION_OVERDUE
    assert told.sentence.startswith(f"should have gone by {stamp(100)}")


LOADING = {"conditions": [SCHEDULED], "containerStatuses": running(since=5)}


def placed(pod, node="node1"):
    return {**pod, "spec": {"nodeName": node} if node else {}}


@pytest.mark.parametrize(
    "status",
    [{"conditions": [SCHEDULED]}, {"initContainerStatuses": running(since=5)}, LOADING],
    ids=["its image comes", "fetches", "loads"],
)
def test_a_pod_on_its_way_is_starting_until_its_time_is_up(pod, status):
    given = placed(pod(**status))

    assert is_starting(given, LIMITS, at(20))
    assert not is_starting(given, LIMITS, at(65))


@pytest.mark.parametrize(
    ("status", "node"),
    [
        (LOADING, None),
        ({**LOADING, "metadata": {"deletionTimestamp": stamp(50)}}, "node1"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, "node1"),
        ({"containerStatuses": running(since=5, started=True)}, "node1"),
        ({"containerStatuses": running(since=5, lastState={"terminated": {}})}, "node1"),
    ],
    ids=["on no node", "leaves", "answers", "has answered", "has crashed"],
)
def test_others_are_not(pod, status, node):
    assert not is_starting(placed(pod(**status), node), LIMITS, at(20))
