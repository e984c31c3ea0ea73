"""When an old replica is taken before its successor starts."""

from datetime import UTC, datetime, timedelta

import pytest

from octavo_operator import api, rollouts
from octavo_operator.snapshot import Snapshot

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
PATIENCE = timedelta(seconds=30)
NO_GPU = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
READY = [{"type": "Ready", "status": "True"}]
QUOTA = "pods is forbidden: exceeded quota: q, requested: requests.nvidia.com/gpu=1"


@pytest.fixture
def step(service_body, pod_body, replica_set_body):
    """The step of a rollout: one old pod, and one new pod that the scheduler judges so."""

    def decide(
        sentence=NO_GPU,
        waits_for_s=60,
        strategy="auto",
        resource="nvidia.com/gpu",
        max_surge=1,
        old=READY,
        node="node1",
        refusal=None,
    ):
        since = (NOW - timedelta(seconds=waits_for_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        unplaced = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": sentence,
            "lastTransitionTime": since,
        }
        labels = {"labels": {"pod-template-hash": "old"}}
        old_pod = {**pod_body("a", labels, conditions=old), "spec": {"nodeName": node}}
        new_pod = pod_body("b", conditions=[unplaced] if sentence else [])
        failure = {"type": "ReplicaFailure", "status": "True", "message": refusal}
        deployment = {
            "metadata": {
                "name": "chat",
                "generation": 1,
                "annotations": {"deployment.kubernetes.io/revision": "2"},
            },
            "spec": {"strategy": {"rollingUpdate": {"maxSurge": max_surge}}},
            "status": {
                "observedGeneration": 1,
                "conditions": [{**failure, "lastTransitionTime": since}] if refusal else [],
            },
        }
        spec = {"rollout": {"strategy": strategy}, "accelerator": {"resourceName": resource}}
        snapshot = Snapshot(
            {"Deployment": deployment},
            (old_pod, new_pod),
            (replica_set_body("old", 1), replica_set_body("new", 2)),
        )
        return rollouts.step(api.parse(service_body(spec)), snapshot, NOW, PATIENCE)

    return decide


def test_a_surge_that_found_no_accelerator_in_time_gives_way(step):
    decided = step()

    assert decided.takes_first
    assert decided.blocked == (
        "no node has a spare nvidia.com/gpu for a surge: pod b waits for one that an old pod holds:"
        " replicas are replaced one by one"
    )


def test_a_surge_is_given_time_to_find_one(step):
    decided = step(waits_for_s=10)

    assert not decided.takes_first
    assert decided.decided_in_s == 20
    assert decided.blocked.endswith("an old replica is taken first if that lasts for 30 s")


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "none"])
def test_a_replica_with_a_claim_of_its_own_leaves_first(service_body, resource):
    claim = {"size": "1Gi", "perReplica": True}
    spec = {
        "model": {"uri": "hf://a/b", "cache": {"newClaim": claim}},
        "accelerator": {"resourceName": resource},
    }
    decided = rollouts.step(api.parse(service_body(spec)), Snapshot(), NOW, PATIENCE)

    assert decided == rollouts.Step(takes_first=True)


def test_nothing_is_lost_by_taking_an_old_replica_that_does_not_answer(step):
    assert step(waits_for_s=0, old=[]).takes_first


@pytest.mark.parametrize(
    "given",
    [
        {"sentence": "0/1 nodes are available: 1 Insufficient memory."},
        {"sentence": None},
        {"resource": "none"},
        {"node": None},
        {"resource": "amd.com/gpu"},
    ],
    ids=["other shortage", "placed", "on the CPU", "old pod holds nothing", "other accelerator"],
)
def test_whatever_else_keeps_a_new_replica_takes_no_old_one(step, given):
    assert step(**given) == rollouts.Step(takes_first=False)


def test_a_quota_that_leaves_no_accelerator_is_the_same_deadlock(step):
    decided = step(sentence=None, refusal=QUOTA)

    assert decided.takes_first
    assert QUOTA in decided.blocked


def test_a_quota_of_something_else_is_not(step):
    assert not step(sentence=None, refusal="exceeded quota: q, requested: pods=1").takes_first


def test_it_stays_so_until_the_old_replicas_have_gone(step):
    """Otherwise each replica would wait anew."""
    decided = step(sentence=None, max_surge=0)

    assert decided.takes_first
    assert decided.blocked == (
        "no node has a spare nvidia.com/gpu for a surge: replicas are replaced one by one"
    )


def test_it_ends_with_the_old_replicas(step, service_body, replica_set_body):
    deployment = {
        "metadata": {"name": "chat", "generation": 1},
        "spec": {"strategy": {"rollingUpdate": {"maxSurge": 0}}},
    }
    snapshot = Snapshot({"Deployment": deployment})

    decided = rollouts.step(api.parse(service_body()), snapshot, NOW, PATIENCE)
    assert decided == rollouts.Step(takes_first=False)


def test_strategy_surge_never_takes_an_old_replica_and_says_why_it_waits(step):
    decided = step(strategy="surge")

    assert not decided.takes_first
    assert decided.blocked.endswith("and strategy is surge")


def test_strategy_recreate_needs_no_reason(step):
    assert step(strategy="recreate", sentence=None) == rollouts.Step(takes_first=True)


def test_only_the_strategy_is_changed(service_body, step):
    service = api.parse(service_body())

    assert rollouts.carried_out(service, step()).spec.rollout.strategy == "recreate"
    assert rollouts.carried_out(service, step(waits_for_s=0)) == service
