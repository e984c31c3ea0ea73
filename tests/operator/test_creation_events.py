"""Why a StatefulSet makes no pods."""

import pytest

from octavo_operator import creation_events
from octavo_operator.snapshot import Snapshot

WORDS = 'create Pod chat-1 in StatefulSet chat failed error: pods "chat-1" is forbidden: quota'


def stateful_set(wanted=2, has=1, observed=3):
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "chat", "namespace": "team", "uid": "set-1", "generation": 3},
        "spec": {"replicas": wanted},
        "status": {"replicas": has, "observedGeneration": observed},
    }


def event(reason, seconds=0, message=WORDS):
    return {
        "reason": reason,
        "message": message,
        "lastTimestamp": f"2026-01-01T00:00:{seconds:02}Z",
    }


REFUSED, MADE = "FailedCreate", "SuccessfulCreate"


@pytest.mark.parametrize(
    ("events", "told"),
    [
        ([], None),
        ([event(REFUSED)], WORDS),
        ([event(REFUSED, 5), event(MADE, 1, "made chat-0")], WORDS),
        ([event(REFUSED, 1), event(MADE, 5, "made chat-1")], None),
        ([event(MADE, 1, "made"), event(REFUSED, 1)], None),
        ([event(REFUSED, 1, "earlier"), event(REFUSED, 3)], WORDS),
        ([event("SuccessfulDelete", 9), event(REFUSED, 1)], WORDS),
    ],
    ids=["none", "refused", "after a success", "mended", "same second", "the latest", "other"],
)
def test_the_last_try_counts(events, told):
    snapshot = Snapshot({"StatefulSet": stateful_set()}, events={"chat": tuple(events)})

    assert creation_events.failure(snapshot) == told


async def test_events_are_read_while_pods_are_missing(fake_cluster):
    fake_cluster.events["set-1"] = [event(REFUSED)]
    snapshot = Snapshot({"StatefulSet": stateful_set()})

    seen, again_s = await creation_events.looked_at(fake_cluster, "team", snapshot)

    assert creation_events.failure(seen) == WORDS
    assert again_s is not None


@pytest.mark.parametrize(
    "child",
    [stateful_set(has=2), stateful_set(observed=2), {**stateful_set(), "kind": "Deployment"}],
)
async def test_otherwise_nothing_is_asked(fake_cluster, child):
    snapshot = Snapshot({child["kind"]: child})

    assert await creation_events.looked_at(fake_cluster, "team", snapshot) == (snapshot, None)
    assert fake_cluster.calls == []
