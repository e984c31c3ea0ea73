"""Why a pod does not answer, from pods as the API server shows them."""

import json

import pytest

from octavo_operator import pod_causes
from octavo_operator.reasons import Reason


def container(state=None, last=None, **more):
    return {"name": "engine", "image": "e:1", "state": state or {}, "lastState": last or {}, **more}


def ended(**fields):
    return {"terminated": {"exitCode": 1, "reason": "Error", **fields}}


def words(reason, message):
    return json.dumps({"reason": reason, "message": message})


BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting"}}
NOT_READY = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "False"}]


@pytest.mark.parametrize(
    ("status", "reason", "sentence"),
    [
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
                    }
                ]
            },
            Reason.UNSCHEDULABLE,
            "fits on no node: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
        ),
        (
            {"containerStatuses": [container({"waiting": {"reason": "ImagePullBackOff"}})]},
            Reason.IMAGE_PULL,
            "cannot get image e:1: ErrImagePull",
        ),
        (
            {"containerStatuses": [container({"waiting": {"reason": "ErrImageNeverPull"}})]},
            Reason.IMAGE_PULL,
            "cannot get image e:1: ErrImageNeverPull",
        ),
        (
            {
                "containerStatuses": [
                    container(
                        {"waiting": {"reason": "CreateContainerConfigError", "message": "no key"}}
                    )
                ]
            },
            Reason.CONTAINER_CANNOT_START,
            "cannot start container engine: no key",
        ),
        (
            {
                "containerStatuses": [
                    container(ended(reason="StartError", message="exec: octavo: not found"))
                ]
            },
            Reason.CONTAINER_CANNOT_START,
            "cannot start container engine: exec: octavo: not found",
        ),
        *[
            (
                {"containerStatuses": [container(BACK_OFF, ended(message=words(word, "because")))]},
                reason,
                "ended: because",
            )
            for word, reason in [
                ("ModelUnreadable", Reason.MODEL_UNREADABLE),
                ("InvalidConfiguration", Reason.INVALID_CONFIGURATION),
                ("OutOfMemory", Reason.OUT_OF_MEMORY),
                ("EngineFailed", Reason.ENGINE_FAILED),
            ]
        ],
        (
            {"containerStatuses": [container(BACK_OFF, ended(reason="OOMKilled", exitCode=137))]},
            Reason.OOM_KILLED,
            "was killed for memory: the container's memory limit or the node's memory was exceeded",
        ),
        (
            {"containerStatuses": [container(BACK_OFF, ended(exitCode=139))]},
            Reason.CRASH_LOOP,
            "ended with exit code 139",
        ),
        (
            {
                "containerStatuses": [
                    container(BACK_OFF, ended(message="one\nSegmentation fault\n"))
                ]
            },
            Reason.CRASH_LOOP,
            "ended with exit code 1; its last line was: Segmentation fault",
        ),
        (
            {"containerStatuses": [container(BACK_OFF, ended(message='{"reason": "Else"}'))]},
            Reason.CRASH_LOOP,
            'ended with exit code 1; its last line was: {"reason": "Else"}',
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            Reason.POD_FAILED,
            "has failed: Evicted: The node was low on memory.",
        ),
        (
            {"phase": "Failed"},
            Reason.POD_FAILED,
            "has failed: the node gave no reason",
        ),
        (
            {
                "conditions": [
                    {
                        "type": "Ready",
                        "status": "False",
                        "lastTransitionTime": "2026-01-01T00:09:00Z",
                    }
                ],
                "containerStatuses": [
                    container({"running": {"startedAt": "2026-01-01T00:01:00Z"}}, started=True)
                ],
            },
            Reason.NOT_ANSWERING,
            "runs but does not answer its readiness probe",
        ),
    ],
)
def test_a_pod_in_trouble_has_a_cause(pod_body, status, reason, sentence):
    pod = pod_body(**{"conditions": NOT_READY, **status})

    assert pod_causes.cause(pod) == pod_causes.Cause(reason, "chat-1", sentence)


def test_a_cause_stays_while_the_container_runs_again(pod_body):
    """Between two crashes the container runs for a while: the status must not flap."""
    crash = ended(message=words("ModelUnreadable", "no config.json"))
    running = pod_body(containerStatuses=[container({"running": {}}, crash, started=False)])
    waiting = pod_body(containerStatuses=[container(BACK_OFF, crash)])
    just_ended = pod_body(containerStatuses=[container(crash)])

    assert pod_causes.cause(running) == pod_causes.cause(waiting) == pod_causes.cause(just_ended)


def test_a_pod_that_answers_again_has_no_cause(pod_body):
    pod = pod_body(
        conditions=[{"type": "Ready", "status": "True"}],
        containerStatuses=[container({"running": {}}, ended())],
    )

    assert pod_causes.cause(pod) is None


def test_a_leaving_pod_has_no_cause(pod_body):
    pod = pod_body(
        metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"},
        containerStatuses=[container(BACK_OFF, ended())],
    )

    assert pod_causes.cause(pod) is None


def test_a_pod_that_has_just_started_is_not_in_trouble(pod_body):
    """Between its startup probe and its readiness probe a pod is started and not ready."""
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    running = {"running": {"startedAt": "2026-01-01T00:00:02Z"}}
    pod = pod_body(
        conditions=[{"type": "PodScheduled", "status": "True"}, unready],
        containerStatuses=[container(running, started=True)],
    )

    assert pod_causes.cause(pod) is None
    assert pod_causes.waiting_for(pod) == "begins to answer"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ({}, "waits for a node"),
        ({"conditions": NOT_READY}, "starts its container"),
        (
            {"conditions": NOT_READY, "containerStatuses": [container({"running": {}})]},
            "loads its model",
        ),
    ],
)
def test_a_pod_on_its_way_tells_what_it_waits_for(pod_body, status, words):
    pod = pod_body(**status)

    assert pod_causes.cause(pod) is None
    assert pod_causes.waiting_for(pod) == words
