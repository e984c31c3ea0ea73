"""Which changes of conditions are told by an Event, and the Event's form."""

from datetime import UTC, datetime

import pytest

from octavo_operator.transitions import Transition, event, repetition, transitions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def condition(condition_type, status, reason, message="why"):
    return {"type": condition_type, "status": status, "reason": reason, "message": message}


READY = condition("Ready", "True", "AllReplicasReady", "1 of 1 replicas answer")
CRASHED = condition("Ready", "False", "CrashLoop", "pod a ended")
DEGRADED = condition("Degraded", "True", "CrashLoop", "pod a ended")
WELL = condition("Degraded", "False", "AsExpected")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ([], [condition("Accepted", "True", "Accepted")], [("Normal", "Accepted")]),
        ([], [condition("Accepted", "False", "InvalidSpec")], [("Warning", "InvalidSpec")]),
        ([], [condition("Ready", "False", "RollingOut"), WELL], []),
        ([CRASHED], [READY], [("Normal", "AllReplicasReady")]),
        ([READY], [CRASHED], [("Warning", "CrashLoop")]),
        ([READY], [condition("Ready", "False", "RollingOut")], [("Normal", "RollingOut")]),
        (
            [condition("ModelReady", "True", "ModelReady")],
            [condition("ModelReady", "False", "ModelPending")],
            [("Normal", "ModelPending")],
        ),
        ([WELL], [DEGRADED], [("Warning", "CrashLoop")]),
        ([DEGRADED], [WELL], [("Normal", "AsExpected")]),
        (
            [DEGRADED],
            [condition("Degraded", "True", "ImagePull")],
            [("Warning", "ImagePull")],
        ),
        ([CRASHED], [condition("Ready", "False", "RollingOut")], []),
        ([DEGRADED], [condition("Degraded", "True", "CrashLoop", "pod b ended")], []),
        ([READY], [READY], []),
    ],
)
def test_what_is_told(old, new, told):
    assert [(each.type, each.reason) for each in transitions(old, new)] == told


def test_conditions_that_move_for_one_cause_tell_it_once():
    (told,) = transitions([READY, WELL], [CRASHED, DEGRADED])

    assert told == Transition("Warning", "CrashLoop", "pod a ended")


def test_an_event_is_about_the_service(service_body):
    made = event(service_body(), Transition("Warning", "CrashLoop", "x" * 2000), "chat.1", NOW)

    assert made["involvedObject"] == {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "namespace": "team",
        "name": "chat",
        "uid": "uid-1",
    }
    assert made["metadata"] == {"name": "chat.1", "namespace": "team"}
    assert (made["type"], made["reason"], made["count"]) == ("Warning", "CrashLoop", 1)
    assert len(made["message"]) == 1024, "the API server refuses longer ones"


def test_a_repetition_counts_on():
    patch = repetition(Transition("Warning", "CrashLoop", "pod b ended"), 3, NOW)

    assert patch == {
        "message": "pod b ended",
        "lastTimestamp": "2026-01-01T00:00:00Z",
        "count": 3,
    }
