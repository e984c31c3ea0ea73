"""From a hub to a served model through a real pod, and what the status says where that fails.

The hub is a fake (tests/engine/fake_model_server.py) in a pod; kubelet, fetch and engine are real.
"""

import copy
import sys
from pathlib import Path

import pytest
from tests.cluster import hostenv
from tests.cluster.node_setup import models_cache
from tests.operator.cluster_operator import condition, has_reason, pods, service
from tests.tools.smollm2 import make_folder

pytestmark = pytest.mark.cluster

MODEL = "hf://models/smollm2-135m-instruct"
SERVER = Path(__file__).parents[1] / "engine" / "fake_model_server.py"


@pytest.fixture
def overlay(cluster, cluster_provider):
    make_folder(models_cache() / "smollm2-135m-instruct")
    cluster_provider.load_image(hostenv.engine_archive())
    made = hostenv.engine_overlay(node_prefix=cluster.node_prefix)
    (engine,) = made["spec"]["containers"]
    engine["env"] = [one for one in engine["env"] if one["name"] != "HF_HUB_OFFLINE"]
    return made


@pytest.fixture
def namespace(start_operator, kubectl, overlay):
    """With an operator whose engines run here, and a fake hub over the node's models."""
    engine = {
        "image": hostenv.ENGINE_IMAGE,
        "imagePullPolicy": "Never",
        "deviceWithAccelerator": "cpu",
        "podOverlay": overlay,
    }
    start_operator(engine=engine)
    kubectl.apply(*hub(overlay))
    kubectl("wait", "pod/hub", "--for=condition=Ready", "--timeout=60s")
    return kubectl


def hub(overlay):
    spec = copy.deepcopy(overlay["spec"])
    (container,) = spec["containers"]
    container |= {
        "image": hostenv.ENGINE_IMAGE,
        "imagePullPolicy": "Never",
        "command": [sys.executable, str(SERVER), "/var/lib/octavo", "8080"],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    container["volumeMounts"].append({"name": "models", "mountPath": "/var/lib/octavo/models"})
    spec["volumes"].append({"name": "models", "hostPath": {"path": "/var/lib/octavo/models"}})
    spec["terminationGracePeriodSeconds"] = 0
    return (
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "hub", "labels": {"app": "hub"}},
            "spec": spec,
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "hub"},
            "spec": {"selector": {"app": "hub"}, "ports": [{"port": 80, "targetPort": 8080}]},
        },
    )


def fetching(kubectl, uri=MODEL, **model):
    endpoint = f"http://hub.{kubectl.namespace}.svc"
    return service(
        model={"uri": uri, **model},
        nodeSelector={},
        accelerator={"resourceName": "none"},
        engine={
            "cpuKvCacheGiB": 0.1,
            "maxModelLen": 512,
            "env": [{"name": "HF_ENDPOINT", "value": endpoint}],
        },
        rollout={"drainSeconds": 0},
    )


def test_a_model_is_fetched_and_served(namespace):
    kubectl = namespace
    kubectl.apply(fetching(kubectl))
    kubectl.wait_until("ready", has_reason(kubectl, "AllReplicasReady"), timeout_s=180)

    assert condition(kubectl, "ModelReady")["status"] == "True"
    (pod,) = pods(kubectl)
    (fetch,) = pod["status"]["initContainerStatuses"]
    assert (
        "hf://models/smollm2-135m-instruct at revision" in fetch["state"]["terminated"]["message"]
    )
    fit = kubectl.get("osvc", "chat")["status"]["fit"]
    # 30 layers, 3 heads of 64 numbers for K and for V, two bytes each.
    assert fit["kvTokenBytes"] == 30 * 3 * 64 * 2 * 2
    assert fit["kvTokens"] == int(0.1 * 2**30) // fit["kvTokenBytes"]
    assert fit["weightsBytes"] > 200 * 2**20


def test_each_failure_is_told_with_its_cause(namespace):
    kubectl = namespace
    kubectl("create", "secret", "generic", "empty", "--from-literal=other=x")
    for model, reason, sentence in (
        ({"uri": "hf://models/absent"}, "DownloadFailed", "models/absent at http://hub."),
        ({"secretRef": {"name": "empty"}}, "SecretMissing", "lacks HF_TOKEN; it holds other"),
        ({"secretRef": {"name": "absent"}}, "SecretMissing", "waits for Secret 'absent'"),
        ({}, "DoesNotFit", "a memory limit above"),
    ):
        body = fetching(kubectl, **model)
        if reason == "DoesNotFit":
            body["spec"]["resources"] = {"limits": {"memory": "250Mi"}}
        kubectl.apply(body)
        kubectl.wait_until(reason, has_reason(kubectl, reason, "ModelReady"), timeout_s=90)

        told = condition(kubectl, "ModelReady")
        (pod,) = pods(kubectl)
        assert told["status"] == "False"
        assert told["message"].startswith(f"pod {pod['metadata']['name']} ")
        assert sentence in told["message"]
        kubectl("delete", "osvc", "chat")
        kubectl.wait_until("no pod is left", lambda: not pods(kubectl))
