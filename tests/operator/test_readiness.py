"""From facts to conditions: each line of the specification of Ready, and what always holds."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo_operator import readiness
from octavo_operator.conditions import ConditionType
from octavo_operator.facts import Facts, Problem, Rollout
from octavo_operator.pod_causes import Cause
from octavo_operator.reasons import Reason

DONE = Rollout(
    is_observed=True, replicas=2, updated_replicas=2, ready_replicas=2, was_complete=True
)
NONE_YET = Rollout(is_observed=True, replicas=2, updated_replicas=2)
UNPLACED = Cause(Reason.UNSCHEDULABLE, "chat-3", "fits on no node: no GPU")
CRASH = Cause(Reason.CRASH_LOOP, "chat-2", "ended with exit code 1")


def facts(rollout=DONE, **more):
    return Facts(**{"generation": 1, "wanted_replicas": 2, "rollout": rollout, **more})


def by_type(given_facts):
    return {condition.type: condition for condition in readiness.conditions(given_facts)}


def with_(rollout, **more):
    return Rollout(**{**rollout.__dict__, **more})


@pytest.mark.parametrize(
    ("given_facts", "reason", "message"),
    [
        (
            facts(not_accepted=Problem(Reason.INVALID_MODEL_URI, "spec.model.uri …")),
            Reason.INVALID_MODEL_URI,
            "spec.model.uri …",
        ),
        (
            facts(not_applied=Problem(Reason.APPLY_REJECTED, "refused")),
            Reason.APPLY_REJECTED,
            "refused",
        ),
        (
            facts(predecessors=("Service chat",)),
            Reason.PREDECESSOR_TERMINATING,
            "objects of a deleted service with the same name are still being removed: Service chat",
        ),
        (
            facts(
                with_(DONE, replicas=3, updated_replicas=1), blocked="no GPU", causes=(UNPLACED,)
            ),
            Reason.ROLLOUT_BLOCKED_NO_SPARE_GPU,
            "no GPU",
        ),
        (
            facts(with_(DONE, updated_replicas=1), blocked="no GPU", causes=(CRASH,)),
            Reason.CRASH_LOOP,
            "pod chat-2 ended with exit code 1",
        ),
        (
            facts(NONE_YET, causes=(CRASH,)),
            Reason.CRASH_LOOP,
            "pod chat-2 ended with exit code 1",
        ),
        (
            facts(NONE_YET, causes=(CRASH, CRASH, CRASH)),
            Reason.CRASH_LOOP,
            "pod chat-2 ended with exit code 1 (and 2 more pods in trouble)",
        ),
        (
            facts(with_(NONE_YET, creation_failure='pods "x" is forbidden: exceeded quota: q')),
            Reason.QUOTA_EXCEEDED,
            'the API server refuses pods: pods "x" is forbidden: exceeded quota: q',
        ),
        (
            facts(with_(NONE_YET, creation_failure="violates PodSecurity")),
            Reason.POD_CREATION_FAILED,
            "the API server refuses pods: violates PodSecurity",
        ),
        (
            facts(with_(NONE_YET, deadline_message="has timed out progressing.")),
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            "0 of 2 replicas answer, and none came in time: has timed out progressing.",
        ),
        (
            facts(with_(DONE, is_observed=False)),
            Reason.ROLLING_OUT,
            "the Deployment has not yet taken up this generation",
        ),
        (
            facts(with_(DONE, replicas=3, updated_replicas=1), waiting=("pod c loads its model",)),
            Reason.ROLLING_OUT,
            "1 of 2 replicas run this generation; pod c loads its model",
        ),
        (
            facts(with_(DONE, replicas=3, updated_replicas=3, ready_replicas=3)),
            Reason.DRAINING,
            "3 replicas run, 2 are wanted",
        ),
        (
            facts(NONE_YET, waiting=("pod a loads its model", "pod b waits for a node")),
            Reason.STARTING,
            "0 of 2 replicas answer; pod a loads its model; pod b waits for a node",
        ),
        (
            facts(Rollout(is_observed=True), wanted_replicas=0),
            Reason.SCALED_TO_ZERO,
            "spec.replicas is 0, so nothing serves",
        ),
        (
            facts(with_(DONE, ready_replicas=1)),
            Reason.MINIMUM_REPLICAS_UNAVAILABLE,
            "1 of 2 replicas answer",
        ),
    ],
)
def test_why_a_service_is_not_ready(given_facts, reason, message):
    ready = by_type(given_facts)["Ready"]

    assert (ready.status, ready.reason, ready.message) == (False, reason, message)


def test_a_service_is_ready_when_all_replicas_of_this_generation_answer():
    told = by_type(facts())

    assert told["Ready"].status
    assert told["Ready"].reason is Reason.ALL_REPLICAS_READY
    assert told["Available"].status
    assert not told["Degraded"].status
    assert (told["Progressing"].status, told["Progressing"].reason) == (
        False,
        Reason.ROLLOUT_COMPLETE,
    )


def test_a_service_that_serves_the_old_generation_is_available_and_not_ready():
    told = by_type(facts(with_(DONE, replicas=3, updated_replicas=1)))

    assert told["Available"].status
    assert told["Progressing"].status
    assert not told["Ready"].status


def test_a_refused_spec_takes_nothing_from_what_serves():
    told = by_type(facts(not_accepted=Problem(Reason.INVALID_SPEC, "no")))

    assert not told["Accepted"].status
    assert told["Available"].status


def test_a_bad_new_replica_degrades_while_the_old_serves():
    told = by_type(
        facts(
            Rollout(is_observed=True, replicas=3, updated_replicas=1, ready_replicas=2),
            causes=(CRASH,),
        )
    )

    assert told["Available"].status
    assert told["Degraded"].status
    assert told["Degraded"].reason is Reason.CRASH_LOOP
    assert told["Ready"].reason is Reason.CRASH_LOOP


def test_a_blocked_rollout_goes_on():
    told = by_type(facts(with_(DONE, replicas=3, updated_replicas=1), blocked="no GPU"))

    assert told["Progressing"].status
    assert told["Progressing"].reason is Reason.ROLLOUT_BLOCKED_NO_SPARE_GPU
    assert told["Degraded"].status


def test_a_service_stays_ready_while_a_pod_leaves():
    told = by_type(facts(leaving=("chat-0",)))

    assert told["Ready"].status
    assert told["Progressing"].status
    assert told["Progressing"].reason is Reason.DRAINING
    assert told["Progressing"].message == "pods that end their streams and leave: chat-0"


def test_a_pod_that_does_not_go_degrades_and_leaves_ready():
    stays = Cause(Reason.TERMINATION_OVERDUE, "chat-0", "should have gone")
    told = by_type(facts(overstaying=(stays, stays)))

    assert told["Degraded"].reason is Reason.TERMINATION_OVERDUE
    assert told["Degraded"].message == "pod chat-0 should have gone (and 1 more)"
    assert told["Ready"].status


rollouts = st.builds(
    Rollout,
    is_observed=st.booleans(),
    replicas=st.integers(0, 4),
    updated_replicas=st.integers(0, 4),
    ready_replicas=st.integers(0, 4),
    was_complete=st.booleans(),
    deadline_message=st.sampled_from([None, "late"]),
    creation_failure=st.sampled_from([None, "exceeded quota", "no"]),
)
problems = st.sampled_from([None, Problem(Reason.INVALID_SPEC, "no")])
any_facts = st.builds(
    Facts,
    generation=st.just(1),
    wanted_replicas=st.integers(0, 3),
    rollout=rollouts,
    causes=st.sampled_from([(), (CRASH,), (CRASH, CRASH)]),
    waiting=st.sampled_from([(), ("pod a loads its model",)]),
    not_accepted=problems,
    not_applied=problems,
    predecessors=st.sampled_from([(), ("Service chat",)]),
    leaving=st.sampled_from([(), ("chat-0",)]),
)


@given(any_facts)
def test_every_condition_is_told_with_a_sentence(given_facts):
    told = readiness.conditions(given_facts)

    assert tuple(condition.type for condition in told) == get_args(ConditionType)
    assert all(condition.message for condition in told)


@given(any_facts)
def test_ready_never_contradicts_the_others(given_facts):
    told = by_type(given_facts)

    if told["Ready"].status:
        assert told["Accepted"].status
        assert told["Available"].status
        assert not told["Degraded"].status
        assert not told["Progressing"].status or told["Progressing"].reason is Reason.DRAINING
        assert given_facts.rollout.ready_replicas >= given_facts.wanted_replicas > 0


@given(any_facts)
def test_available_means_that_a_replica_answers(given_facts):
    assert by_type(given_facts)["Available"].status == (given_facts.rollout.ready_replicas > 0)
