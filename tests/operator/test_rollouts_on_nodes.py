"""Rollouts among real pods: what serves is not taken by what does not, and none waits for ever."""

import pytest
from tests.operator.cluster_operator import condition, name_of, pods
from tests.operator.stand_in import ANSWER, doing, patch

pytestmark = pytest.mark.cluster

GPUS = {"accelerator": {"resourceName": "nvidia.com/gpu"}}


@pytest.fixture
def kubectl(kubectl_on_nodes):
    yield kubectl_on_nodes
    kubectl_on_nodes("delete", "osvc", "--all", "--cascade=foreground", "--timeout=60s")


def change(kubectl, **spec):
    kubectl("patch", "osvc", "chat", "--type=merge", f"--patch={patch(**spec)}")


def wait_for(kubectl, reason, condition_type="Ready"):
    def holds():
        return condition(kubectl, condition_type).get("reason") == reason

    kubectl.wait_until(f"{condition_type} {reason}", holds, timeout_s=90)


def test_without_a_spare_accelerator_an_old_replica_goes_first_and_the_reason_is_told(kubectl):
    kubectl.apply(doing("chat", **GPUS, engine={"tensorParallelSize": 2}))
    wait_for(kubectl, "AllReplicasReady")

    change(kubectl, engine={"maxModelLen": 1024})

    wait_for(kubectl, "RolloutBlockedNoSpareGPU", "Degraded")
    told = condition(kubectl, "Degraded")["message"]
    assert told.startswith("no node has a spare nvidia.com/gpu for a surge")
    wait_for(kubectl, "AllReplicasReady")
    (pod,) = pods(kubectl)
    assert "--max-model-len=1024" in pod["spec"]["containers"][0]["args"]
    assert event_reasons(kubectl).count("RolloutBlockedNoSpareGPU") == 1
    steps = "--output=jsonpath={.spec.strategy.rollingUpdate.maxSurge}"
    kubectl.wait_until("surges again", lambda: kubectl("get", "deployment", "chat", steps) == "1")


def test_strategy_surge_keeps_what_serves_and_says_why_nothing_moves(kubectl):
    strategy = {"strategy": "surge"}
    kubectl.apply(doing("chat", **GPUS, engine={"tensorParallelSize": 2}, rollout=strategy))
    wait_for(kubectl, "AllReplicasReady")
    (old,) = pods(kubectl)

    change(kubectl, engine={"maxModelLen": 1024})

    wait_for(kubectl, "RolloutBlockedNoSpareGPU")
    assert condition(kubectl)["message"].endswith("and strategy is surge")
    assert condition(kubectl, "Available")["status"] == "True"
    assert name_of(old) in [name_of(pod) for pod in pods(kubectl)]


def script(text):
    return {"engine": {"env": [{"name": "DO", "value": text}]}}


@pytest.mark.parametrize(
    ("bad", "good", "reason"),
    [
        ({"image": "localhost/nobody/has:this"}, {"image": None}, "ImagePull"),
        (script("exit 3"), script(ANSWER), "CrashLoop"),
    ],
    ids=["image", "argument"],
)
def test_a_bad_change_takes_no_replica_that_serves_and_its_revert_keeps_it(
    kubectl, bad, good, reason
):
    kubectl.apply(doing("chat", **GPUS))
    wait_for(kubectl, "AllReplicasReady")
    (serving,) = pods(kubectl)

    change(kubectl, **bad)
    wait_for(kubectl, reason)
    assert condition(kubectl, "Available")["status"] == "True"
    assert name_of(serving) in [name_of(pod) for pod in pods(kubectl)]

    change(kubectl, **good)
    wait_for(kubectl, "AllReplicasReady")
    assert [name_of(pod) for pod in pods(kubectl)] == [name_of(serving)]
    assert condition(kubectl, "Degraded")["status"] == "False"


def test_a_service_of_which_nothing_has_ever_run_is_mended_by_a_change(kubectl):
    """No rollout waits for what never becomes ready; scaling down waits for no reference."""
    secret = {"auth": {"apiKeysSecretRef": {"name": "absent"}}}
    kubectl.apply(doing("chat", "exit 3", **GPUS, **secret, engine={"tensorParallelSize": 2}))
    wait_for(kubectl, "SecretMissing")
    change(kubectl, replicas=0)
    wait_for(kubectl, "ScaledToZero")
    change(kubectl, replicas=1, auth=None)
    wait_for(kubectl, "CrashLoop")

    change(kubectl, **script(ANSWER))

    wait_for(kubectl, "AllReplicasReady")


def event_reasons(kubectl):
    events = kubectl.get("events", "--field-selector=involvedObject.name=chat")["items"]
    return [each["reason"] for each in events]
