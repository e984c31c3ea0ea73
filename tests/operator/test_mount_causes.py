"""What the kubelet's Events say of a pod without volumes. The messages are a real kubelet's."""

from datetime import UTC, datetime, timedelta

import pytest

from octavo_operator import mount_causes
from octavo_operator.reasons import Reason

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def event(message, at="2026-01-01T00:00:00Z", reason="FailedMount", **more):
    return {
        "metadata": {"creationTimestamp": at},
        "reason": reason,
        "message": message,
        **more,
    }


@pytest.fixture
def waiting(pod_body):
    def make(since="2026-01-01T00:00:00Z", started="False", **more):
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": since},
            {"type": "PodReadyToStartContainers", "status": started},
        ]
        return pod_body(**{"phase": "Pending", "conditions": conditions, **more})

    return make


@pytest.mark.parametrize(
    ("message", "reason", "sentence"),
    [
        (
            'MountVolume.SetUp failed for volume "model" : hostPath type check failed: '
            "/models/chat is not a directory",
            Reason.MODEL_NOT_FOUND,
            "finds no model on its node: /models/chat is not a directory",
        ),
        (
            'MountVolume.SetUp failed for volume "lib" : hostPath type check failed: '
            "/lib is not a directory",
            Reason.VOLUME_MOUNT,
            "cannot mount volume 'lib': MountVolume.SetUp failed for volume \"lib\" : "
            "hostPath type check failed: /lib is not a directory",
        ),
        (
            'MountVolume.SetUp failed for volume "model-secret" : secret "hub" not found',
            Reason.SECRET_MISSING,
            "waits for Secret 'hub', which does not exist",
        ),
        (
            'MountVolume.SetUp failed for volume "keys" : '
            "references non-existent secret key: api-keys",
            Reason.SECRET_MISSING,
            "waits for a Secret that lacks the key 'api-keys': MountVolume.SetUp failed for "
            'volume "keys" : references non-existent secret key: api-keys',
        ),
    ],
)
def test_what_an_event_means(waiting, message, reason, sentence):
    found = mount_causes.cause(waiting(), [event(message)])

    assert (found.reason, found.sentence) == (reason, sentence)


def test_the_newest_event_counts_and_summaries_do_not(waiting):
    events = [
        event('MountVolume.SetUp failed for volume "a" : old', at="2026-01-01T00:00:00Z"),
        event(
            'MountVolume.SetUp failed for volume "b" : new',
            at="2025-12-31T00:00:00Z",
            lastTimestamp="2026-01-01T00:00:09Z",
        ),
        event("Unable to attach or mount volumes: unmounted volumes=[a]", "2026-01-01T00:01:00Z"),
        event("Pod sandbox changed", "2026-01-01T00:01:00Z", reason="SandboxChanged"),
    ]

    assert "'b'" in mount_causes.cause(waiting(), events).sentence


def test_events_of_other_matters_are_no_cause(waiting):
    assert mount_causes.cause(waiting(), [event("pulled", reason="Pulled")]) is None


@pytest.mark.parametrize(
    ("more", "awaits"),
    [
        ({}, True),
        ({"started": "True"}, False),
        ({"phase": "Running"}, False),
        ({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
        ({"conditions": []}, False),
    ],
)
def test_which_pods_wait_for_volumes(waiting, more, awaits):
    assert mount_causes.awaits_volumes(waiting(**more)) is awaits


def test_looks_grow_rarer_the_longer_a_pod_waits(waiting):
    pod = waiting()
    pauses_s = [
        mount_causes.pause_s(pod, NOW + timedelta(seconds=waited_s))
        for waited_s in (0, 4, 20, 100, 1000)
    ]

    assert pauses_s == [3, 3, 10, 50, 60]
