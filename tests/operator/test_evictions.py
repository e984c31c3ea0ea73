"""A pod that keeps a broken accelerator is evicted, and no other one is."""

from datetime import UTC, datetime

import pytest

from octavo_operator.errors import ApiRejected, ApiUnavailable
from octavo_operator.events import EventWriter
from octavo_operator.evictions import evict_faulty, faulty
from octavo_operator.metrics import Metrics
from octavo_operator.snapshot import Snapshot

FAULT = '{"reason": "GPUFault", "message": "an illegal address"}'
OTHER = '{"reason": "OutOfMemory", "message": "no page is left"}'
DOWN = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.fixture
def pod(pod_body):
    def after(restarts, state=DOWN, words=FAULT, metadata=None, **status):
        ended = {"terminated": {"exitCode": 5, "message": words}}
        container = {"name": "engine", "restartCount": restarts, "state": state, "lastState": ended}
        metadata = {"uid": "uid-p", **(metadata or {})}
        return pod_body(metadata=metadata, containerStatuses=[container], **status)

    return after


def labels(pod):
    return {"labels": pod["metadata"]["labels"]}


def test_one_that_is_down_by_its_third_fault_has_to_go(pod):
    assert faulty(Snapshot(pods=(pod(2),))) == pod(2)


@pytest.mark.parametrize(
    "given",
    [
        {"restarts": 1},
        {"restarts": 2, "words": OTHER},
        {"restarts": 2, "state": {"running": {}}},
        {"restarts": 2, "conditions": [{"type": "Ready", "status": "True"}]},
        {"restarts": 2, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
    ],
    ids=["its second", "another cause", "it tries again", "it answers", "it leaves"],
)
def test_others_stay(pod, given):
    assert faulty(Snapshot(pods=(pod(**given),))) is None


def test_they_go_one_by_one(pod):
    leaving = pod(2, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})

    assert faulty(Snapshot(pods=(leaving, pod(2)))) is None


@pytest.fixture
def evict(fake_cluster, pod, service_body):
    async def one():
        events = EventWriter(fake_cluster, Metrics(), lambda: datetime(2026, 1, 1, tzinfo=UTC))
        snapshot = Snapshot(pods=(pod(2),))
        return await evict_faulty(fake_cluster, events, Metrics(), service_body(), snapshot)

    return one


def told(cluster):
    return [body for (kind, *_), body in cluster.objects.items() if kind == "Event"]


async def test_it_is_told_by_an_event(evict, fake_cluster, pod):
    fake_cluster.put(pod(2))

    assert await evict() is None
    assert fake_cluster.calls == ["evict Pod", "create Event"]
    (event,) = told(fake_cluster)
    assert (event["type"], event["reason"]) == ("Warning", "PodEvicted")
    assert event["message"].startswith("pod chat-1 ended by a GPU fault after 2 restarts")


async def test_one_that_has_gone_meanwhile_is_not_told(evict, fake_cluster):
    assert await evict() is None
    assert told(fake_cluster) == []


@pytest.mark.parametrize(
    "error",
    [
        ApiUnavailable("EVICT", 429, "Cannot evict pod as it would violate its budget"),
        ApiRejected("EVICT", 403, "forbidden"),
    ],
    ids=["held by a budget", "no right"],
)
async def test_a_refusal_is_tried_again_later(evict, fake_cluster, pod, error):
    fake_cluster.put(pod(2))
    fake_cluster.failures["evict Pod"] = error

    assert await evict() == 10
    assert told(fake_cluster) == []
