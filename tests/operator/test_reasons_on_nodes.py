"""Each reason of the closed list as a real kubelet, scheduler and API server bring it about.

All services are applied at once; each reason is looked for in all that their statuses said.
"""

import re
import sys
from pathlib import Path

import pytest
from tests.operator.cluster_operator import name_of, pods
from tests.operator.stand_in import ANSWER, SLEEP, doing, last_words, pod_template
from tests.operator.status_watch import StatusWatch

from octavo_operator.reasons import Reason

pytestmark = pytest.mark.cluster

OVERFILL = f"exec {sys.executable} -c 'x = bytearray(10**9); print(len(x))'"
TARRY = f"sleep 6; {ANSWER}"
"""Long enough that the operator looks in between, however busy the machine is."""
CEASE = f"(sleep 15; rm /tmp/www/readyz) & {ANSWER}"
GPUS = {"accelerator": {"resourceName": "nvidia.com/gpu"}}
ABSENT_FILES = {
    "volumes": [{"name": "extra", "configMap": {"name": "absent"}}],
    "containers": [{"name": "engine", "volumeMounts": [{"name": "extra", "mountPath": "/extra"}]}],
}
CUDA = "the engine has stopped: AcceleratorError: CUDA error: an illegal memory access"
STALL = "work waits and no step was made for 61 s"

TROUBLES = {
    Reason.UNSCHEDULABLE: (
        {**GPUS, "engine": {"tensorParallelSize": 8}},
        "fits on no node: .*Insufficient nvidia.com/gpu",
    ),
    Reason.IMAGE_PULL: (
        {"image": "localhost/nobody/has:this"},
        "cannot get image localhost/nobody/has:this: ErrImageNeverPull",
    ),
    Reason.CONTAINER_CANNOT_START: (
        pod_template(command=["/absent"]),
        "cannot start container engine: .*/absent",
    ),
    Reason.SECRET_MISSING: (
        {"auth": {"apiKeysSecretRef": {"name": "absent"}}},
        "waits for Secret 'absent', which does not exist",
    ),
    Reason.VOLUME_MOUNT: ({"podTemplate": {"spec": ABSENT_FILES}}, "cannot mount volume 'extra': "),
    Reason.MODEL_NOT_FOUND: (
        {"model": {"uri": "file:///absent/model"}},
        "finds no model on its node: /absent/model is not a directory",
    ),
    Reason.OOM_KILLED: (
        {"script": OVERFILL, "resources": {"limits": {"memory": "64Mi"}}},
        "was killed for memory: ",
    ),
    Reason.CRASH_LOOP: (
        {"script": "echo no such thing; exit 3"},
        "ended with exit code 3; its last line was: no such thing",
    ),
    Reason.NOT_ANSWERING: ({"script": CEASE}, "runs but does not answer its readiness probe"),
    Reason.PROGRESS_DEADLINE_EXCEEDED: (
        {"script": SLEEP, "rollout": {"progressDeadlineSeconds": 10}},
        "(starts its container|loads its model) for more than",
    ),
    Reason.MODEL_UNREADABLE: (
        {"script": last_words("errors.CheckpointError('no config.json')")},
        "ended: no config.json",
    ),
    Reason.INVALID_CONFIGURATION: (
        {"script": last_words("errors.ConfigError('block_size 3')")},
        "ended: block_size 3",
    ),
    Reason.OUT_OF_MEMORY: ({"script": last_words("MemoryError('9 GiB')")}, "ended: 9 GiB"),
    Reason.GPU_FAULT: (
        {"script": last_words(f"errors.EngineDead('{CUDA}')")},
        f"ended: {CUDA}",
    ),
    Reason.ENGINE_STALLED: (
        {"script": last_words(f"errors.EngineStalled('{STALL}')")},
        f"ended: {STALL}",
    ),
    Reason.ENGINE_FAILED: (
        {"script": last_words("RuntimeError('boom')")},
        "ended: RuntimeError: boom",
    ),
}
"""Reason -> spec of a service, and what its message says of the pod."""

REFUSALS = {
    Reason.INVALID_SPEC: (
        {"podTemplate": {"spec": {"containers": [{"image": "x"}]}}},
        "Accepted",
        "spec.podTemplate.spec: .*containers",
    ),
    Reason.INVALID_MODEL_URI: (
        {"model": {"uri": "file:///."}},
        "Accepted",
        "spec.model.uri 'file:///.' must hold an absolute path",
    ),
    Reason.APPLY_REJECTED: (
        {"podTemplate": {"spec": {"restartPolicy": "Never"}}},
        "Degraded",
        "the API server refuses the Deployment: .*restartPolicy",
    ),
}
"""Reason -> spec of a service, the condition that tells it, and what it says."""

WELL = {
    "Accepted": Reason.ACCEPTED,
    "ModelReady": Reason.MODEL_READY,
    "Available": Reason.REPLICAS_AVAILABLE,
    "Progressing": Reason.ROLLOUT_COMPLETE,
    "Degraded": Reason.AS_EXPECTED,
    "Ready": Reason.ALL_REPLICAS_READY,
}
ON_THE_WAY = {
    Reason.ROLLING_OUT: ("Progressing", "the Deployment has not yet taken up this generation"),
    Reason.STARTING: ("Ready", "0 of 1 replicas answer; pod well-"),
    Reason.MODEL_PENDING: ("ModelReady", "no pod has read the model's files yet; pod well-"),
}

ELSEWHERE = {
    Reason.DOWNLOAD_FAILED: "test_fetch_on_nodes.py",
    Reason.CHECKSUM_MISMATCH: "test_fetch_on_nodes.py",
    Reason.DOES_NOT_FIT: "test_fetch_on_nodes.py",
    Reason.SCALED_TO_ZERO: "test_rollouts_on_cluster.py",
    Reason.ROLLOUT_BLOCKED_NO_SPARE_GPU: "test_rollouts_on_nodes.py",
    Reason.NAME_TAKEN: "test_children_on_cluster.py",
    Reason.PREDECESSOR_TERMINATING: "test_children_on_cluster.py",
    Reason.QUOTA_EXCEEDED: "test_trouble_on_cluster.py",
    Reason.POD_FAILED: "test_trouble_on_cluster.py",
    Reason.POD_CREATION_FAILED: "test_causes_on_nodes.py",
}
"""Reason -> the module that brings it about and looks for it."""

AFTER_A_LOSS = (Reason.MINIMUM_REPLICAS_UNAVAILABLE, Reason.DRAINING, Reason.TERMINATION_OVERDUE)


def test_no_reason_goes_unprovoked():
    here = {*TROUBLES, *REFUSALS, *WELL.values(), *ON_THE_WAY, *AFTER_A_LOSS}

    assert here | set(ELSEWHERE) == set(Reason)
    for reason, module in ELSEWHERE.items():
        assert f'"{reason.value}"' in (Path(__file__).parent / module).read_text()


@pytest.fixture(scope="module")
def watch(kubectl_on_nodes, tmp_path_factory):
    begun = StatusWatch(kubectl_on_nodes, tmp_path_factory.mktemp("watch"))
    specs = {reason: spec for reason, (spec, *_) in (TROUBLES | REFUSALS).items()}
    services = [doing(reason.lower(), **spec) for reason, spec in specs.items()]
    kubectl_on_nodes.apply(doing("well", TARRY), doing("stuck"), *services)
    yield begun
    begun.stop()
    kubectl_on_nodes("delete", "osvc", "--all", "--wait=false")


@pytest.fixture
def told(watch, kubectl_on_nodes):
    """Waits for a condition of a service to say what the pattern says; the message."""

    def wait(service, condition, status, reason, pattern="", timeout_s=120):
        def found():
            return [
                each.message
                for each in watch.seen()
                if each[:4] == (service, condition, status, reason.value)
                and re.match(pattern, each.message, re.DOTALL)
            ]

        kubectl_on_nodes.wait_until(f"{service}: {reason} {pattern}", found, timeout_s)
        return found()[-1]

    return wait


@pytest.mark.parametrize("reason", TROUBLES)
def test_a_pod_in_trouble_is_told_with_its_name_and_the_cause(told, reason):
    service = reason.lower()
    pattern = rf"pod {service}-\S+ {TROUBLES[reason][1]}"

    for condition, status in (("Degraded", "True"), ("Ready", "False")):
        told(service, condition, status, reason, pattern)


@pytest.mark.parametrize("reason", REFUSALS)
def test_what_cannot_be_carried_out_is_told(told, reason):
    _, condition, pattern = REFUSALS[reason]

    status = "True" if condition == "Degraded" else "False"
    told(reason.lower(), condition, status, reason, pattern)
    told(reason.lower(), "Ready", "False", reason, pattern)


@pytest.mark.parametrize("condition", WELL)
def test_a_service_that_is_well_says_so(told, condition):
    status = "False" if condition in ("Progressing", "Degraded") else "True"
    told("well", condition, status, WELL[condition])


@pytest.mark.parametrize("reason", ON_THE_WAY)
def test_what_it_waited_for_was_told(told, reason):
    condition, pattern = ON_THE_WAY[reason]
    told("well", "Ready", "True", Reason.ALL_REPLICAS_READY)

    told("well", condition, "True" if condition == "Progressing" else "False", reason, pattern)


def test_a_replica_that_leaves_and_its_loss_are_told(told, kubectl_on_nodes):
    told("well", "Ready", "True", Reason.ALL_REPLICAS_READY)
    (lost,) = pods(kubectl_on_nodes, "well")

    kubectl_on_nodes("delete", "pod", name_of(lost), "--wait=false")

    told("well", "Ready", "False", Reason.MINIMUM_REPLICAS_UNAVAILABLE, "0 of 1 replicas answer; ")
    pattern = f"pods that end their streams and leave: {name_of(lost)}"
    told("well", "Progressing", "True", Reason.DRAINING, pattern)


def test_a_pod_that_does_not_go_is_told(told, kubectl_on_nodes):
    told("stuck", "Ready", "True", Reason.ALL_REPLICAS_READY)
    name = name_of(pods(kubectl_on_nodes, "stuck")[0])
    hold = '{"metadata": {"finalizers": ["octavo.test/hold"]}}'
    kubectl_on_nodes("patch", "pod", name, f"--patch={hold}")
    kubectl_on_nodes("delete", "pod", name, "--grace-period=1", "--wait=false")
    try:
        message = told("stuck", "Degraded", "True", Reason.TERMINATION_OVERDUE)
        assert message.startswith(f"pod {name} should have gone by ")
        told("stuck", "Ready", "True", Reason.ALL_REPLICAS_READY)
    finally:
        kubectl_on_nodes("patch", "pod", name, '--patch={"metadata": {"finalizers": null}}')


def test_a_pod_that_keeps_a_broken_accelerator_gets_a_successor(told, kubectl_on_nodes):
    service = Reason.GPU_FAULT.lower()
    field = f"--field-selector=involvedObject.name={service},reason=PodEvicted"

    def said():
        return [event["message"] for event in kubectl_on_nodes.get("events", field)["items"]]

    # The kubelet waits 10 s and then 20 s before it starts a container again.
    kubectl_on_nodes.wait_until("evicted", said, timeout_s=120)
    evicted = said()[0].split()[1]
    kubectl_on_nodes.wait_until(
        "a successor",
        lambda: evicted not in [name_of(pod) for pod in pods(kubectl_on_nodes, service)],
    )
