"""What the status tells of load and replicas, and that it follows the load at a bounded pace."""

from datetime import UTC, datetime, timedelta

from octavo_operator import scale_status, status
from octavo_operator.autoscale import Decision, ReplicaLoad, ScaleReason, Terms, Window
from octavo_operator.samples import ServiceLoad
from octavo_operator.scaling import Scale

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SOON = NOW + timedelta(seconds=29)
LATER = NOW + timedelta(seconds=30)
BUSY = ServiceLoad((ReplicaLoad(6, 2, 0.5, 8), ReplicaLoad(1, 2, 0.25, 8)), 1)
IDLE = ServiceLoad((ReplicaLoad(0, 0, 0.0, 8),), 0)
TERMS = Terms(pending_requests=2, kv_cache_use=1, keep=2, room=5)
STEADY = Decision(2, ScaleReason.STEADY, "the load needs 2 replicas", TERMS)
GROWN = Decision(3, ScaleReason.PENDING_REQUESTS, "from 2 to 3: ...", TERMS)


def test_the_load_is_told_as_a_whole():
    told = scale_status.parts({}, Scale(2, BUSY), NOW)

    assert told == {
        "load": {
            "time": "2026-01-01T00:00:00Z",
            "readReplicas": 2,
            "pendingRequests": 7,
            "runningRequests": 4,
            "kvCacheUsePercent": 38,
        }
    }


def test_a_load_that_is_not_known_is_not_told():
    old = scale_status.parts({}, Scale(2, BUSY), NOW)

    assert scale_status.parts(old, Scale(2, ServiceLoad((), 2)), NOW) == {}


def test_a_decision_is_told_with_its_inputs_terms_and_reason():
    window = Window(NOW - timedelta(seconds=60), 1)
    decision = Decision(2, ScaleReason.STABILIZING, "1 replicas are enough", TERMS, window)
    told = scale_status.parts({}, Scale(2, BUSY, decision), NOW)["autoscaling"]

    assert told == {
        "time": "2026-01-01T00:00:00Z",
        "replicas": 2,
        "reason": "Stabilizing",
        "message": "1 replicas are enough",
        "inputs": {
            "readReplicas": 2,
            "unreadReplicas": 1,
            "pendingRequests": 7,
            "runningRequests": 4,
            "kvCacheUsePercent": 38,
            "roomPerReplica": 5,
        },
        "terms": {"pendingRequests": 2, "kvCacheUse": 1, "keep": 2},
        "lowerSince": "2025-12-31T23:59:00Z",
    }


def test_a_moving_load_is_told_at_a_bounded_pace():
    old = scale_status.parts({}, Scale(2, BUSY, STEADY), NOW)

    assert scale_status.parts(old, Scale(2, IDLE, STEADY), SOON) == old
    assert scale_status.parts(old, Scale(2, IDLE, STEADY), LATER)["load"]["pendingRequests"] == 0


def test_the_same_load_is_never_told_again():
    old = scale_status.parts({}, Scale(2, BUSY, STEADY), NOW)

    assert scale_status.parts(old, Scale(2, BUSY, STEADY), NOW + timedelta(days=1)) == old


def test_a_new_number_of_replicas_is_told_at_once():
    old = scale_status.parts({}, Scale(2, BUSY, STEADY), NOW)
    new = scale_status.parts(old, Scale(3, BUSY, GROWN), SOON)

    assert new["autoscaling"]["replicas"] == 3
    assert new["autoscaling"]["reason"] == "PendingRequests"


def test_that_samples_are_missing_is_told_at_once():
    blind = Decision(2, ScaleReason.SAMPLES_MISSING, "none of 2 ready replicas ...", None)
    old = scale_status.parts({}, Scale(2, BUSY, STEADY), NOW)

    new = scale_status.parts(old, Scale(2, ServiceLoad((), 2), blind), SOON)
    assert new["autoscaling"]["reason"] == "SamplesMissing"
    assert scale_status.parts(new, Scale(2, BUSY, STEADY), SOON)["autoscaling"]["terms"]


def test_nothing_is_told_of_autoscaling_where_the_spec_says_the_number():
    old = scale_status.parts({}, Scale(2, BUSY, STEADY), NOW)

    assert "autoscaling" not in scale_status.parts(old, Scale(2, BUSY), NOW)


def test_what_an_object_in_the_status_has_lost_is_removed_from_it():
    old = {"a": {"kept": 1, "moved": 2, "gone": 3}, "b": {"same": 1}}
    new = {"a": {"kept": 1, "moved": 4}, "b": {"same": 1}}

    assert status.merge_patch(old, new) == {"status": {"a": {"moved": 4, "gone": None}}}
