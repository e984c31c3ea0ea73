"""From a hub or an image to a served model, and what the status says where that fails.

The hub is a fake (tests/engine/fake_model_server.py) in a pod; kubelet, runtime, fetch and engine
are real.
"""

import copy
import json
import sys
from pathlib import Path

import certifi
import pytest
from tests.cluster import hostenv
from tests.cluster.node_setup import models_cache
from tests.cluster.scratch_image import Tree, write_archive
from tests.engine.byte_model import save_byte_model
from tests.operator.cluster_operator import condition, pods, service
from tests.tools.smollm2 import make_folder

pytestmark = pytest.mark.cluster

MODEL = "hf://models/smollm2-135m-instruct"
SERVER = Path(__file__).parents[1] / "engine" / "fake_model_server.py"
HUB = f"""
mkdir --parents /tmp/hub/spoilt/model && cd /tmp/hub/spoilt/model &&
echo '{{}}' > config.json && echo x > model.safetensors &&
echo 'deadbeef{"0" * 56}  config.json' > SHA256SUMS &&
ln --symbolic /var/lib/octavo/models /tmp/hub/models &&
exec {sys.executable} {SERVER} /tmp/hub 8080
"""
"""The node's models, and a bucket in which a file is not what the sums beside it say."""


@pytest.fixture(scope="module")
def kubectl(cluster, kubectl_of_module, operator_of_module):
    """With an operator whose engines run here, and a fake hub over the node's models."""
    make_folder(models_cache() / "smollm2-135m-instruct")
    overlay = hostenv.engine_overlay(node_prefix=cluster.node_prefix)
    (engine,) = overlay["spec"]["containers"]
    engine["env"] = [one for one in engine["env"] if one["name"] != "HF_HUB_OFFLINE"]
    operator_of_module.start(
        engine={
            "image": hostenv.ENGINE_IMAGE,
            "imagePullPolicy": "Never",
            "deviceWithAccelerator": "cpu",
            "podOverlay": overlay,
        }
    )
    kubectl_of_module.apply(*hub(overlay))
    kubectl_of_module("wait", "pod/hub", "--for=condition=Ready", "--timeout=60s")
    return kubectl_of_module


def hub(overlay):
    spec = copy.deepcopy(overlay["spec"])
    (container,) = spec["containers"]
    container |= {
        "image": hostenv.ENGINE_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", HUB],
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


def fetching(kubectl, name, resources=None, **model):
    endpoint = f"http://hub.{kubectl.namespace}.svc"
    return service(
        name,
        model={"uri": MODEL, **model},
        nodeSelector={},
        accelerator={"resourceName": "none"},
        resources=resources or {},
        engine={
            "cpuKvCacheGiB": 0.1,
            "maxModelLen": 512,
            "env": [
                {"name": "HF_ENDPOINT", "value": endpoint},
                {"name": "AWS_ENDPOINT_URL", "value": endpoint},
                {"name": "AWS_REGION", "value": "nowhere"},
                # The test image has none; the library wants them even for plain HTTP.
                {"name": "SSL_CERT_FILE", "value": certifi.where()},
            ],
        },
        rollout={"drainSeconds": 0},
    )


@pytest.fixture(scope="module")
def fetched(kubectl):
    """The status of a service whose model was fetched, once it is ready; and its pod."""
    kubectl.apply(fetching(kubectl, "fetched"))

    def is_told():
        status = kubectl.get("osvc", "fetched").get("status", {})
        is_ready = condition(kubectl, "Ready", "fetched").get("status") == "True"
        return is_ready and "engineMilliseconds" in status.get("startup", {})

    kubectl.wait_until("ready, and its metrics read", is_told, timeout_s=300)
    (pod,) = pods(kubectl, "fetched")
    yield kubectl.get("osvc", "fetched")["status"], pod
    kubectl("delete", "osvc", "fetched")


def test_a_model_is_fetched_and_served(fetched, kubectl):
    status, pod = fetched

    assert condition(kubectl, "ModelReady", "fetched")["status"] == "True"
    (fetch,) = pod["status"]["initContainerStatuses"]
    assert (
        "hf://models/smollm2-135m-instruct at revision" in fetch["state"]["terminated"]["message"]
    )
    # 30 layers, 3 heads of 64 numbers for K and for V, two bytes each.
    assert status["fit"]["kvTokenBytes"] == 30 * 3 * 64 * 2 * 2
    assert status["fit"]["kvTokens"] == int(0.1 * 2**30) // status["fit"]["kvTokenBytes"]
    assert status["fit"]["weightsBytes"] > 200 * 2**20


def test_the_phases_of_its_start_are_told(fetched):
    status, pod = fetched
    startup = status["startup"]

    assert (startup["pod"], startup["time"]) == (
        pod["metadata"]["name"],
        pod["metadata"]["creationTimestamp"],
    )
    phases = ("scheduleSeconds", "imageSeconds", "fetchSeconds", "loadSeconds")
    assert startup["totalSeconds"] == sum(startup[phase] for phase in phases)
    assert startup["loadSeconds"] > 0
    assert startup["engineMilliseconds"]["weights"] > 0


MODEL_IMAGE = "localhost/octavo-test/byte-model:1"


@pytest.fixture(scope="module")
def model_image(cluster_provider, tmp_path_factory):
    """A checkpoint in a folder of an image that is nothing but the checkpoint."""
    folder = tmp_path_factory.mktemp("image")
    tree = Tree()
    for file in sorted(save_byte_model(folder / "model").iterdir()):
        tree.file(f"/checkpoint/{file.name}", file.read_bytes())
    write_archive(folder / "byte-model.tar", MODEL_IMAGE, tree, {})
    cluster_provider.load_image(folder / "byte-model.tar")


def test_a_model_in_an_image_is_mounted_and_served(model_image, kubectl):
    wanted = fetching(kubectl, "image", uri=f"oci://{MODEL_IMAGE}#checkpoint")
    wanted["spec"]["engine"] |= {"maxModelLen": 128, "env": []}
    kubectl.apply(wanted)

    kubectl.wait_until(
        "ready",
        lambda: condition(kubectl, "Ready", "image").get("status") == "True",
        timeout_s=180,
    )
    (pod,) = pods(kubectl, "image")
    assert "initContainers" not in pod["spec"], "nothing is to be fetched"
    path = "services/image:http/proxy/v1/models"
    told = kubectl("get", "--raw", f"/api/v1/namespaces/{kubectl.namespace}/{path}")
    assert json.loads(told)["data"][0]["max_model_len"] == 128
    kubectl("delete", "osvc", "image")


FAILURES = {
    "absent": ({"uri": "hf://models/absent"}, "DownloadFailed", "models/absent at http://hub."),
    "spoilt": ({"uri": "s3://spoilt/model"}, "ChecksumMismatch", "its source says deadbeef"),
    "keyless": (
        {"secretRef": {"name": "empty"}},
        "SecretMissing",
        "lacks HF_TOKEN; it holds other",
    ),
    "unlocked": ({"secretRef": {"name": "absent"}}, "SecretMissing", "waits for Secret 'absent'"),
    "large": ({}, "DoesNotFit", "a memory limit above"),
}
"""Name of a service -> its model, the reason why it does not come, and what is told of it."""


@pytest.fixture(scope="module")
def failing(kubectl):
    kubectl("create", "secret", "generic", "empty", "--from-literal=other=x")
    for name, (model, *_) in FAILURES.items():
        resources = {"limits": {"memory": "250Mi"}} if name == "large" else None
        kubectl.apply(fetching(kubectl, name, resources, **model))
    yield kubectl
    kubectl("delete", "osvc", *FAILURES, "--wait=false")


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told_with_its_cause(failing, name):
    _, reason, sentence = FAILURES[name]

    def told():
        return condition(failing, "ModelReady", name)

    failing.wait_until(reason, lambda: told().get("reason") == reason, timeout_s=90)
    (pod,) = pods(failing, name)
    assert told()["status"] == "False"
    assert told()["message"].startswith(f"pod {pod['metadata']['name']} ")
    assert sentence in told()["message"]
