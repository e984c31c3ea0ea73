"""From a YAML file to tokens and back: the walk that `make demo` shows."""

from __future__ import annotations

import json

import pytest
from tests.cluster.audit import Call
from tests.cluster.local import LocalProvider
from tests.cluster.provider import Provider
from tests.e2e import chat, faults, walk
from tests.e2e.stage import OPERATOR_NAMESPACE, OPERATOR_PODS, Stage
from tests.e2e.streams import streaming

pytestmark = pytest.mark.cluster


NUM_STREAMS = 4
BEFORE = (walk.APPLY, walk.CHAT, walk.LIST)
UNDER_STREAMS = (walk.CHANGE, walk.SCALE)
"""Steps that cut no stream; `make survive` has all others of that kind."""
AFTER = (walk.KILL, walk.DELETE)


def test_a_yaml_file_becomes_tokens_and_leaves_nothing(
    stage: Stage, cluster_provider: Provider
) -> None:
    """Though the operator is killed in each step, where its process can be reached."""
    for step in BEFORE:
        _walk(step, stage, cluster_provider)
    with (
        chat.endpoint(stage) as url,
        streaming(url, "smollm2", number=NUM_STREAMS, max_tokens=32) as streams,
    ):
        stage.wait("streams under way", lambda: streams.num_running == NUM_STREAMS)
        for step in UNDER_STREAMS:
            _walk(step, stage, cluster_provider)
    print(f"{len(streams.done)} streams")
    assert [each for each in streams.done if each.fate != "whole"] == []
    assert len(streams.done) > NUM_STREAMS
    for step in AFTER:
        _walk(step, stage, cluster_provider)


def _walk(step: walk.Step, stage: Stage, provider: Provider) -> None:
    step.act(stage)
    if isinstance(provider, LocalProvider):
        faults.kill_operator(provider, stage)
    print(f"{step.title}: {step.settle(stage)}")
    faults.wait_for_operator(stage)


def test_the_operator_recovers_when_the_api_server_is_killed(
    stage: Stage, local_provider: LocalProvider
) -> None:
    before = _operator_pod_names(stage)
    walk.APPLY.act(stage)
    faults.kill_api_server(local_provider)
    stage.wait("the API server answers", lambda: _answers(stage))
    walk.APPLY.settle(stage)
    walk.SCALE.act(stage)
    walk.SCALE.settle(stage)
    assert _operator_pod_names(stage) == before


def test_the_operator_runs_with_least_privilege(stage: Stage) -> None:
    spec = stage.get("pods", f"--namespace={OPERATOR_NAMESPACE}", f"--selector={OPERATOR_PODS}")
    (container,) = spec["items"][0]["spec"]["containers"]
    security = {**spec["items"][0]["spec"]["securityContext"], **container["securityContext"]}
    assert security["runAsNonRoot"] is True
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    for right in (
        "get secrets",
        "create pods",
        "create pods/exec",
        "delete pods",
        "delete services",
    ):
        verb, resource = right.split()
        call = Call("", resource, verb, "default", name="", is_allowed=False)
        assert not stage.operator_may(call)
    assert stage.operator_may(Call("", "pods", "list", "default", name="", is_allowed=False))


def test_an_unreadable_model_is_a_condition_with_the_reason(stage: Stage) -> None:
    service = {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "broken"},
        "spec": {"model": {"uri": "file:///var/lib/octavo/models"}},
    }
    stage.kubectl("apply", "--filename=-", stdin=json.dumps(service))
    stage.wait("ModelUnreadable", lambda: _ready(stage, "broken")["reason"] == "ModelUnreadable")
    assert "config.json" in _ready(stage, "broken")["message"]
    assert "broken-" in _ready(stage, "broken")["message"], "the message names the pod"


def _ready(stage: Stage, name: str) -> dict[str, str]:
    conditions = stage.get(f"osvc/{name}").get("status", {}).get("conditions", [])
    found = [condition for condition in conditions if condition["type"] == "Ready"]
    return found[0] if found else {"reason": "", "message": ""}


def _answers(stage: Stage) -> bool:
    try:
        stage.kubectl("get", "--raw=/readyz")
    except Exception:
        return False
    return True


def _operator_pod_names(stage: Stage) -> list[tuple[str, int]]:
    """Names and restarts, as (name, restarts)."""
    found = stage.get("pods", f"--namespace={OPERATOR_NAMESPACE}", f"--selector={OPERATOR_PODS}")
    return [
        (pod["metadata"]["name"], pod["status"]["containerStatuses"][0]["restartCount"])
        for pod in found["items"]
    ]
