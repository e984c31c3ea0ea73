"""A claim for each replica, among real pods: it stays while pods come and go, and ends with all."""

import pytest
from tests.operator.cluster_operator import condition, name_of, pods, service
from tests.operator.stand_in import ANSWER, CPU, patch

pytestmark = pytest.mark.cluster

NUM_VOLUMES = 2
COUNT = "echo start >> /model/starts; wc -l < /model/starts"
"""In the fetch's place: how often a pod has started on this volume."""


@pytest.fixture
def kubectl(kubectl_on_nodes):
    """With volumes for claims of the class that bears the namespace's name."""
    volumes = [volume(kubectl_on_nodes.namespace, idx) for idx in range(NUM_VOLUMES)]
    kubectl_on_nodes.apply(*volumes)
    yield kubectl_on_nodes
    kubectl_on_nodes("delete", "osvc", "--all", "--cascade=foreground", "--timeout=60s")
    names = [made["metadata"]["name"] for made in volumes]
    kubectl_on_nodes("delete", "persistentvolume", *names, "--wait=false")


def volume(storage_class, idx):
    name = f"{storage_class}-{idx}"
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": {"path": f"/run/{name}", "type": "DirectoryOrCreate"},
        },
    }


def kept(kubectl, **spec):
    claim = {"size": "1Gi", "storageClassName": kubectl.namespace, "perReplica": True}
    # The folder belongs to root, as no storage of a real cluster would leave it.
    root = {"runAsUser": 0, "runAsNonRoot": False}
    fetch = {"name": "fetch", "command": ["/bin/sh", "-c", COUNT], "securityContext": root}
    return service(
        model={"uri": "hf://org/name", "cache": {"newClaim": claim}},
        engine={"env": [{"name": "DO", "value": ANSWER}]},
        rollout={"drainSeconds": 0},
        podTemplate={"spec": {"initContainers": [fetch]}},
        nodeSelector={},
        replicas=2,
        **CPU,
        **spec,
    )


def wait_ready(kubectl, replicas):
    def holds():
        if condition(kubectl).get("reason") != "AllReplicasReady":
            return False
        return kubectl.get("osvc", "chat")["status"]["readyReplicas"] == replicas

    kubectl.wait_until(f"{replicas} ready", holds, timeout_s=90)


def starts(kubectl):
    """Name of each pod -> starts that its volume has seen."""
    names = sorted(name_of(pod) for pod in pods(kubectl))
    return {name: int(kubectl("logs", name, "--container=fetch")) for name in names}


def change(kubectl, **spec):
    kubectl("patch", "osvc", "chat", "--type=merge", f"--patch={patch(**spec)}")


def test_replicas_keep_their_claims_through_a_rollout_that_is_turned_back(kubectl):
    kubectl.apply(kept(kubectl))
    wait_ready(kubectl, 2)
    assert starts(kubectl) == {"chat-0": 1, "chat-1": 1}

    change(kubectl, engine={"env": [{"name": "DO", "value": "echo broken; exit 3"}]})
    kubectl.wait_until(
        "told", lambda: condition(kubectl, "Degraded").get("reason") == "CrashLoop", timeout_s=90
    )
    assert "pod chat-1 ended with exit code 3" in condition(kubectl, "Degraded")["message"]
    assert condition(kubectl, "Available")["status"] == "True"
    assert condition(kubectl, "Progressing")["reason"] == "RollingOut"

    change(kubectl, engine={"env": [{"name": "DO", "value": ANSWER}]})
    wait_ready(kubectl, 2)
    assert starts(kubectl) == {"chat-0": 1, "chat-1": 3}

    template = kubectl.get("statefulset", "chat")["spec"]["template"]
    kubectl("scale", "osvc/chat", "--replicas=1")
    wait_ready(kubectl, 1)
    assert kubectl.get("statefulset", "chat")["spec"]["template"] == template
    claims = kubectl.get("pvc")["items"]
    assert [claim["status"]["phase"] for claim in claims] == ["Bound", "Bound"]

    kubectl("delete", "osvc", "chat")
    kubectl.wait_until("no claim is left", lambda: not kubectl.get("pvc")["items"])
