"""The status, and what of it is written."""

from datetime import UTC, datetime

import pytest

from octavo_operator import status
from octavo_operator.facts import Facts, Rollout

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FACTS = Facts(3, 2, Rollout(is_observed=True, replicas=2, updated_replicas=2, ready_replicas=2))


def test_the_status_tells_of_one_generation(service_body):
    told = status.wanted(service_body(), "chat", FACTS, NOW)

    assert told["observedGeneration"] == 3
    assert {condition["observedGeneration"] for condition in told["conditions"]} == {3}


def test_the_status_tells_where_and_what_is_served(service_body):
    told = status.wanted(service_body(), "org/model", FACTS, NOW)

    assert told["url"] == "http://chat.team.svc/v1"
    assert told["servedName"] == "org/model"
    assert told["labelSelector"] == "serving.octavo.dev/service=chat"
    counts = ("wantedReplicas", "replicas", "updatedReplicas", "readyReplicas")
    assert [told[count] for count in counts] == [2, 2, 2, 2]


def test_a_name_that_could_not_be_read_is_not_told(service_body):
    assert "servedName" not in status.wanted(service_body(), None, FACTS, NOW)


def test_the_same_facts_later_write_nothing(service_body):
    first = status.wanted(service_body(), "chat", FACTS, NOW)
    body = {**service_body(), "status": first}
    second = status.wanted(body, "chat", FACTS, NOW.replace(year=2027))

    assert status.merge_patch(first, second) is None


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"b": 3}),
        ({"a": 1, "gone": 2}, {"a": 1}, {"gone": None}),
    ],
)
def test_only_what_changed_is_written(old, new, patch):
    assert status.merge_patch(old, new) == {"status": patch}
