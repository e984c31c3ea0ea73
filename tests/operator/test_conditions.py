"""The one setter of conditions."""

from datetime import UTC, datetime

from octavo_operator.conditions import Condition, merged
from octavo_operator.reasons import Reason

BEFORE = "2026-01-01T00:00:00Z"
NOW = datetime(2026, 2, 2, 3, 4, 5, 678, tzinfo=UTC)


def ready(status, reason=Reason.STARTING, message="m"):
    return Condition("Ready", status, reason, message)


def old(status):
    return {
        "type": "Ready",
        "status": status,
        "reason": "Starting",
        "message": "old",
        "observedGeneration": 1,
        "lastTransitionTime": BEFORE,
    }


def test_a_new_condition_begins_now():
    (condition,) = merged([], [ready(False)], 2, NOW)

    assert condition == {
        "type": "Ready",
        "status": "False",
        "reason": "Starting",
        "message": "m",
        "observedGeneration": 2,
        "lastTransitionTime": "2026-02-02T03:04:05Z",
    }


def test_the_time_stays_while_the_status_stays():
    (condition,) = merged([old("False")], [ready(False, Reason.UNSCHEDULABLE, "new")], 2, NOW)

    assert condition["lastTransitionTime"] == BEFORE
    assert (condition["reason"], condition["message"]) == ("Unschedulable", "new")


def test_the_time_moves_with_the_status():
    (condition,) = merged([old("False")], [ready(True)], 2, NOW)

    assert condition["lastTransitionTime"] == "2026-02-02T03:04:05Z"


def test_a_type_that_is_no_longer_told_goes():
    gone = {**old("True"), "type": "Elsewhere"}

    assert [c["type"] for c in merged([gone], [ready(True)], 2, NOW)] == ["Ready"]


def test_a_long_message_is_cut():
    (condition,) = merged([], [ready(False, message="x" * 5000)], 2, NOW)

    assert len(condition["message"]) == 1024
    assert condition["message"].endswith("…")
