"""The fetch's plan, from a pod's status into the service's."""

import json

import pytest

from octavo_operator import fit

PLAN = {"weightsBytes": 16, "kvTokenBytes": 2, "contextLen": 64, "kvTokens": 9, "maxModelLen": 9}


@pytest.fixture
def fetched(pod_body):
    def make(message, name="fetch", created="2026-01-01T00:00:00Z"):
        ended = {"exitCode": 0, "message": message}
        statuses = [{"name": name, "ready": True, "state": {"terminated": ended}}]
        return pod_body(metadata={"creationTimestamp": created}, initContainerStatuses=statuses)

    return make


def words(**plan):
    return json.dumps({"reason": "Fetched", "message": "m", "fit": plan})


def test_a_plan_is_read(fetched):
    assert fit.planned([fetched(words(**PLAN))]) == PLAN


def test_what_is_not_known_is_left_out(fetched):
    plan = fit.planned([fetched(words(**{**PLAN, "kvTokens": None, "maxModelLen": None}))])

    assert plan == {"weightsBytes": 16, "kvTokenBytes": 2, "contextLen": 64}


def test_the_newest_pod_counts(fetched):
    old = fetched(words(**PLAN))
    new = fetched(words(**{**PLAN, "weightsBytes": 8}), created="2026-01-02T00:00:00Z")

    assert fit.planned([old, new])["weightsBytes"] == 8


@pytest.mark.parametrize(
    "message",
    [
        "",
        "its last line",
        "[]",
        '{"reason": "Fetched"}',
        '{"fit": null}',
        '{"fit": {"kvTokens": "x"}}',
    ],
)
def test_other_words_are_no_plan(fetched, message):
    assert fit.planned([fetched(message)]) is None


def test_other_containers_plan_nothing(fetched, pod_body):
    assert fit.planned([fetched(words(**PLAN), name="other"), pod_body()]) is None
