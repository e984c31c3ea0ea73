"""How Events are written: merged while they repeat, never a storm, never a failure of the rest."""

from datetime import UTC, datetime, timedelta

import pytest

from octavo_operator.errors import ApiRejected
from octavo_operator.events import EventWriter
from octavo_operator.metrics import Metrics
from octavo_operator.transitions import Transition

CRASH = Transition("Warning", "CrashLoop", "pod a ended")
READY = Transition("Normal", "AllReplicasReady", "1 of 1 replicas answer")


class Clock:
    def __init__(self):
        self.now = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self):
        return self.now

    def pass_(self, **time):
        self.now += timedelta(**time)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def writer(fake_cluster, metrics, clock):
    return EventWriter(fake_cluster, metrics, clock)


@pytest.fixture
def written(fake_cluster):
    def events():
        return [body for (kind, *_), body in fake_cluster.objects.items() if kind == "Event"]

    return events


def outcomes(metrics, outcome):
    labels = {"type": "Warning", "outcome": outcome}
    return metrics.registry.get_sample_value("octavo_operator_events_total", labels)


async def test_each_reason_gets_an_event(writer, service_body, written):
    await writer.tell(service_body(), (CRASH, READY))

    assert [each["reason"] for each in written()] == ["CrashLoop", "AllReplicasReady"]


async def test_what_repeats_soon_raises_the_count(writer, service_body, written, clock):
    await writer.tell(service_body(), (CRASH,))
    clock.pass_(minutes=2)
    await writer.tell(service_body(), (Transition("Warning", "CrashLoop", "pod b ended"),))

    (event,) = written()
    assert (event["count"], event["message"]) == (2, "pod b ended")
    assert event["lastTimestamp"] > event["firstTimestamp"]


async def test_what_repeats_much_later_is_told_anew(writer, service_body, written, clock):
    await writer.tell(service_body(), (CRASH,))
    clock.pass_(minutes=11)
    await writer.tell(service_body(), (CRASH,))

    assert [each["count"] for each in written()] == [1, 1]


async def test_an_event_that_has_expired_is_made_again(writer, service_body, written, fake_cluster):
    await writer.tell(service_body(), (CRASH,))
    fake_cluster.objects.clear()
    await writer.tell(service_body(), (CRASH,))

    assert [each["count"] for each in written()] == [1]


async def test_a_service_that_flaps_makes_no_storm(
    writer, service_body, fake_cluster, metrics, clock
):
    for _ in range(100):
        await writer.tell(service_body(), (CRASH,))
    assert len(fake_cluster.calls) == 20
    assert outcomes(metrics, "dropped") == 80

    clock.pass_(minutes=2)
    for _ in range(10):
        await writer.tell(service_body(), (CRASH,))
    assert len(fake_cluster.calls) == 22


async def test_one_that_flaps_takes_nothing_from_others(writer, service_body, written):
    for _ in range(100):
        await writer.tell(service_body(), (CRASH,))
    await writer.tell(service_body(name="other"), (READY,))

    assert written()[-1]["involvedObject"]["name"] == "other"


async def test_a_service_made_again_is_another_one(writer, service_body, written):
    await writer.tell(service_body(uid="uid-1"), (CRASH,))
    await writer.tell(service_body(uid="uid-2"), (CRASH,))

    assert [each["involvedObject"]["uid"] for each in written()] == ["uid-1", "uid-2"]


async def test_a_refusal_is_counted_and_hurts_nobody(writer, service_body, fake_cluster, metrics):
    fake_cluster.failures["create Event"] = ApiRejected("POST", 403, "no")

    await writer.tell(service_body(), (CRASH,))

    assert outcomes(metrics, "failed") == 1
