"""The few facts that are taken out of a snapshot."""

from datetime import UTC, datetime

import pytest

from octavo_operator import facts
from octavo_operator.deadlines import limits
from octavo_operator.reasons import Reason
from octavo_operator.snapshot import Snapshot

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TIMED_OUT = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "late"}
COMPLETE = {"type": "Progressing", "reason": "NewReplicaSetAvailable"}
REFUSED = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}


def deployment(generation=2, **status):
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {
            "name": "chat",
            "generation": generation,
            "annotations": {"deployment.kubernetes.io/revision": "1"},
        },
        "status": {"observedGeneration": generation, **status},
    }


def crashed(exit_code=1):
    return [{"name": "engine", "state": {"terminated": {"exitCode": exit_code}}}]


@pytest.fixture
def gather(replica_set_body):
    def gathered(deployed, pods=(), **more):
        snapshot = Snapshot({"Deployment": deployed}, tuple(pods), (replica_set_body(),))
        return facts.gather(1, 2, snapshot, now=NOW, limits=limits(2700), **more)

    return gathered


@pytest.mark.parametrize(
    ("status", "field", "value"),
    [
        ({"observedGeneration": 1}, "is_observed", False),
        ({"observedGeneration": 2}, "is_observed", True),
        ({"readyReplicas": 3}, "ready_replicas", 3),
        ({"updatedReplicas": 3}, "updated_replicas", 3),
        ({"replicas": 3}, "replicas", 3),
        ({"conditions": [COMPLETE]}, "was_complete", True),
        ({"conditions": [TIMED_OUT]}, "was_complete", False),
        ({"conditions": [TIMED_OUT]}, "deadline_message", "late"),
        ({"conditions": [REFUSED]}, "creation_failure", "exceeded quota"),
        ({"conditions": [{**REFUSED, "status": "False"}]}, "creation_failure", None),
    ],
)
def test_what_a_deployment_tells(status, field, value):
    assert getattr(facts.rollout(deployment(**status)), field) == value


def test_without_a_deployment_nothing_runs():
    assert facts.rollout(None) == facts.Rollout()


def test_the_most_telling_cause_comes_first(gather, pod_body):
    evicted = pod_body("a", phase="Failed", reason="Evicted")
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    unplaced = pod_body("b", conditions=[scheduled])
    broken = pod_body("c", containerStatuses=crashed())

    causes = gather(deployment(), [evicted, unplaced, broken]).causes
    assert [cause.pod for cause in causes] == ["c", "b", "a"]


def test_an_evicted_pod_is_forgotten_once_its_replacement_answers(gather, pod_body):
    evicted = pod_body("a", phase="Failed", reason="Evicted")

    assert gather(deployment(readyReplicas=1), [evicted]).causes[0].reason is Reason.POD_FAILED
    assert gather(deployment(readyReplicas=2), [evicted]).causes == ()


def test_pods_without_trouble_tell_what_they_wait_for(gather, pod_body):
    broken = pod_body("b", containerStatuses=crashed())
    leaving = pod_body("c", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})

    assert gather(deployment(), [pod_body("a"), broken, leaving]).waiting == (
        "pod a waits for a node",
    )


def test_what_ails_a_pod_of_an_earlier_template_is_not_told(gather, pod_body):
    old = pod_body("a", {"labels": {"pod-template-hash": "old"}}, containerStatuses=crashed())
    new = pod_body("b")

    told = gather(deployment(), [old, new])
    assert told.causes == ()
    assert told.waiting == ("pod b waits for a node",)


def stateful_set(**status):
    made = deployment(updateRevision="new", **status)
    return {**made, "kind": "StatefulSet", "spec": {"replicas": 2}}


@pytest.fixture
def of_a_stateful_set(pod_body):
    """What is gathered of two replicas, of which so many have answered once."""

    def gathered(num_started, events=()):
        pods = tuple(
            pod_body(
                f"chat-{idx}",
                {"labels": {"controller-revision-hash": "new"}},
                containerStatuses=[{"name": "engine", "started": idx < num_started, "state": {}}],
            )
            for idx in range(2)
        )
        snapshot = Snapshot(
            {"StatefulSet": stateful_set(replicas=2)}, pods, events={"chat": tuple(events)}
        )
        return facts.gather(1, 2, snapshot, now=NOW, limits=limits(2700)).rollout

    return gathered


@pytest.mark.parametrize(("num_started", "was_complete"), [(1, False), (2, True)])
def test_a_stateful_set_was_complete_once_all_its_pods_have_answered(
    of_a_stateful_set, num_started, was_complete
):
    assert of_a_stateful_set(num_started).was_complete is was_complete


def test_what_a_stateful_set_is_refused_is_told_by_its_events(of_a_stateful_set):
    event = {"reason": "FailedCreate", "message": "exceeded quota", "lastTimestamp": "2026"}

    assert of_a_stateful_set(0).creation_failure is None
    assert of_a_stateful_set(0, [event]).creation_failure == "exceeded quota"
