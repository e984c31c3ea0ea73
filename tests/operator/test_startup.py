"""The phases of the last start, out of the pod that made it."""

import pytest

from octavo_operator import startup

READY = {"type": "Ready", "status": "True"}


def at(second):
    return f"2026-01-01T00:00:{second:02d}Z"


@pytest.fixture
def answering(pod_body):
    """A pod made at second 1 that was placed, fetched, ran and answered at the given seconds."""

    def make(name="chat-1", *, made=1, placed=3, fetch=None, begun=9, answered=20, restarts=0):
        conditions = [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": at(placed)},
            {**READY, "lastTransitionTime": at(answered)},
        ]
        fetching = []
        if fetch is not None:
            ended = {"startedAt": at(fetch[0]), "finishedAt": at(fetch[1]), "exitCode": 0}
            fetching = [{"name": "fetch", "ready": True, "state": {"terminated": ended}}]
        running = {"state": {"running": {"startedAt": at(begun)}}, "restartCount": restarts}
        return pod_body(
            name,
            {"creationTimestamp": at(made), "uid": f"uid-{name}"},
            conditions=conditions,
            initContainerStatuses=fetching,
            containerStatuses=[{"name": "engine", **running}],
        )

    return make


def test_the_phases_of_a_start_add_up_to_all_of_it(answering):
    assert startup.told(None, [answering(fetch=(4, 8))], {}) == {
        "pod": "chat-1",
        "time": at(1),
        "totalSeconds": 19,
        "scheduleSeconds": 2,
        "imageSeconds": 2,  # one before the fetch, one between it and the engine
        "fetchSeconds": 4,
        "loadSeconds": 11,
    }


def test_what_is_not_fetched_has_no_such_phase(answering):
    told = startup.told(None, [answering()], {})

    assert "fetchSeconds" not in told
    assert (told["imageSeconds"], told["totalSeconds"]) == (6, 19)


def test_the_engines_own_stages_come_with_its_metrics(answering):
    first = startup.told(None, [answering()], {})
    told = startup.told(first, [answering()], {"uid-chat-1": {"weights": 900, "graphs": 50}})

    assert told == {**first, "engineMilliseconds": {"weights": 900, "graphs": 50}}
    assert startup.told(told, [answering()], {}) == told, "a sample that is missing takes nothing"


def test_a_pod_that_answers_again_has_not_started_again(answering):
    told = startup.told(None, [answering()], {})

    assert startup.told(told, [answering(answered=50)], {}) == told


def test_the_pod_made_last_counts(answering):
    told = startup.told(None, [answering("old")], {})
    told = startup.told(told, [answering("old"), answering("new", made=30, answered=50)], {})

    assert told["pod"] == "new"
    assert startup.told(told, [answering("old")], {}) == told, "the older one began no new start"


def test_a_new_pod_of_the_same_name_adds_nothing_to_its_forerunners_start(answering):
    told = startup.told(None, [answering()], {})
    again = answering(made=30, answered=50, restarts=1)

    assert startup.told(told, [again], {"uid-chat-1": {"weights": 7}}) == told


@pytest.mark.parametrize("change", ["restarted", "not ready", "leaves", "placed by nobody"])
def test_what_is_no_whole_start_is_not_told(answering, change):
    pod = answering(restarts=1 if change == "restarted" else 0)
    if change == "not ready":
        pod["status"]["conditions"][1]["status"] = "False"
    elif change == "leaves":
        pod["metadata"]["deletionTimestamp"] = at(40)
    elif change == "placed by nobody":
        del pod["status"]["conditions"][0]

    assert startup.told(None, [pod], {}) is None


def test_clocks_that_differ_make_no_negative_phase(answering):
    told = startup.told(None, [answering(placed=3, begun=2)], {})

    assert told["imageSeconds"] == 0
    assert told["totalSeconds"] == told["scheduleSeconds"] + told["loadSeconds"]
