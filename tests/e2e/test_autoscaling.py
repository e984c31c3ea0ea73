"""A service on the CPU grows from 1 replica to 3 under load and comes back; no request fails."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.e2e import chat
from tests.e2e.crowd import crowd
from tests.e2e.stage import SERVICE, Stage

pytestmark = pytest.mark.cluster

SERVED = {
    "apiVersion": "serving.octavo.dev/v1alpha1",
    "kind": "InferenceService",
    "metadata": {"name": "smollm2"},
    "spec": {
        "model": {"uri": "file:///var/lib/octavo/models/smollm2-135m-instruct"},
        "accelerator": {"resourceName": "none"},
        # A replica that serves leaves something for those that start beside it.
        "resources": {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}},
        "engine": {"maxNumSeqs": 2, "maxModelLen": 512, "cpuKvCacheGiB": 0.25},
        "autoscaling": {
            "maxReplicas": 3,
            "targets": {"pendingRequestsPerReplica": 1},
            "scaleDownStabilizationSeconds": 10,
        },
    },
}
NUM_CLIENTS = 9
"""Two run and one waits at each of three replicas."""


def test_load_makes_three_of_one_and_its_end_makes_one_again(stage: Stage) -> None:
    stage.kubectl("apply", "--filename=-", stdin=json.dumps(SERVED))
    stage.wait_ready()
    with chat.endpoint(stage) as url, crowd(url, max_tokens=16) as clients:
        clients.grow(NUM_CLIENTS)
        stage.wait("3 replicas answer", lambda: _status(stage).get("readyReplicas") == 3)
        decided = _status(stage)["autoscaling"]
        assert decided["replicas"] == 3
        before = clients.num_answers
        stage.wait("all serve", lambda: clients.num_answers > before + NUM_CLIENTS)

        # One goes on chatting while the others' replicas leave.
        clients.shrink(NUM_CLIENTS - 1)
        stage.wait("1 replica", lambda: len(stage.pods()) == 1)
    assert clients.failures == []
    assert clients.num_answers > 2 * NUM_CLIENTS
    assert _status(stage)["autoscaling"]["replicas"] == 1
    print(f"{clients.num_answers} answers; {decided['message']}")


def _status(stage: Stage) -> dict[str, Any]:
    status: dict[str, Any] = stage.get(SERVICE).get("status", {})
    return status
