"""The operator's promises, on a real API server, with the chart's Role and no more."""

import time

import pytest
from tests.operator.cluster_operator import (
    answer,
    condition,
    place,
    pods,
    roles,
    service,
    set_status,
)
from tests.operator.cut_line import CutLine

from octavo_operator.kinds import WATCHED_KINDS

pytestmark = pytest.mark.cluster


@pytest.fixture
def operator(start_operator):
    return start_operator()


def has_reason(kubectl, reason, condition_type="Ready"):
    return lambda: condition(kubectl, condition_type).get("reason") == reason


def wait_for_pods(kubectl, number):
    """The pods, each bound to a node without a kubelet, for a test to write their status."""
    kubectl.wait_until(f"{number} pods", lambda: len(pods(kubectl)) == number)
    found = pods(kubectl)
    for pod in found:
        place(kubectl, pod)
    return found


def make_ready(kubectl, replicas=1):
    kubectl.apply(service(replicas=replicas))
    for pod in wait_for_pods(kubectl, replicas):
        answer(kubectl, pod)
    kubectl("wait", "--for=condition=Ready", "osvc/chat", "--timeout=30s")


def test_a_service_becomes_ready_and_tells_where(operator, kubectl):
    make_ready(kubectl)

    status = kubectl.get("osvc", "chat")["status"]
    assert status["url"] == f"http://chat.{kubectl.namespace}.svc/v1"
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (1, 1, 1)
    columns = kubectl("get", "osvc", "chat", "--no-headers").split()
    assert columns[:6] == ["chat", "True", "AllReplicasReady", "1", "1", "chat"]


def test_nothing_is_written_while_nothing_changes(start_operator, kubectl):
    operator = start_operator(resyncSeconds=1)
    make_ready(kubectl)
    kubectl.wait_until("quiet", lambda: operator.num_resyncs() >= 2)
    writes, resyncs = operator.num_writes(), operator.num_resyncs()
    version = kubectl.get("osvc", "chat")["metadata"]["resourceVersion"]

    kubectl.wait_until("two resyncs", lambda: operator.num_resyncs() >= resyncs + 2)

    assert operator.num_writes() == writes
    assert kubectl.get("osvc", "chat")["metadata"]["resourceVersion"] == version


@pytest.mark.parametrize(
    ("patch", "path", "wanted"),
    [
        ('{"spec": {"replicas": 5}}', "{.spec.replicas}", "1"),
        (
            '{"spec": {"template": {"spec": {"containers": [{"name": "engine", "image": "x"}]}}}}',
            "{.spec.template.spec.containers[0].image}",
            "localhost/octavo-engine:absent",
        ),
        (
            '{"metadata": {"labels": {"serving.octavo.dev/service": null}}}',
            r"{.metadata.labels.serving\.octavo\.dev/service}",
            "chat",
        ),
        ('{"metadata": {"ownerReferences": null}}', "{.metadata.ownerReferences[0].name}", "chat"),
    ],
    ids=["replicas", "image", "label", "owner"],
)
def test_drift_is_put_back(operator, kubectl, patch, path, wanted):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)

    kubectl("patch", "deployment", "chat", f"--patch={patch}")

    kubectl.wait_until(
        f"{path} is {wanted}",
        lambda: kubectl("get", "deployment", "chat", f"--output=jsonpath={path}") == wanted,
    )


@pytest.mark.parametrize("kind", ["deployment", "service", "serviceaccount"])
def test_a_removed_child_comes_back(operator, kubectl, kind):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    uid = kubectl.get(kind, "chat")["metadata"]["uid"]

    kubectl("delete", kind, "chat", "--wait=false")

    def is_new():
        found = kubectl.tried("get", kind, "chat", "--output=jsonpath={.metadata.uid}").stdout
        return found not in ("", uid)

    kubectl.wait_until(f"a new {kind}", is_new)


def test_foreign_fields_are_left_alone(operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    kubectl("label", "deployment", "chat", "team=ml")
    kubectl("annotate", "service", "chat", "note=mine")

    kubectl.apply(service(replicas=2))  # makes the operator apply the Deployment again
    wait_for_pods(kubectl, 2)

    assert kubectl.get("deployment", "chat")["metadata"]["labels"]["team"] == "ml"
    assert kubectl.get("service", "chat")["metadata"]["annotations"]["note"] == "mine"


@pytest.mark.parametrize("cascade", ["background", "foreground"])
def test_deleting_leaves_nothing(operator, kubectl, cascade):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)

    kubectl("delete", "osvc", "chat", f"--cascade={cascade}", "--wait=false")

    kubectl.wait_until("nothing is left", lambda: not remains(kubectl))


def test_deleting_needs_no_operator(operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    operator.kill()

    kubectl("delete", "osvc", "chat", "--timeout=30s")

    kubectl.wait_until("nothing is left", lambda: not remains(kubectl))


def remains(kubectl):
    kinds = "osvc,deployments,replicasets,services,pods,serviceaccounts"
    items = kubectl.get(kinds)["items"]
    left = [
        item
        for item in items
        if item["metadata"].get("labels", {}).get("serving.octavo.dev/service") == "chat"
        or item["kind"] == "InferenceService"
    ]
    for item in left:
        # Nobody else would end a pod without a node's kubelet.
        if item["kind"] == "Pod" and "deletionTimestamp" in item["metadata"]:
            kubectl.tried("delete", "pod", item["metadata"]["name"], "--force", "--grace-period=0")
    return left


def test_a_service_made_again_gets_children_of_its_own(operator, kubectl):
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    kubectl("delete", "osvc", "chat", "--wait=false")

    kubectl.wait_until(
        "the service is gone", lambda: kubectl.tried("get", "osvc", "chat").returncode != 0
    )
    kubectl.apply(service())

    uid = kubectl.get("osvc", "chat")["metadata"]["uid"]

    def is_owned():
        found = kubectl.tried(
            "get", "deployment", "chat", "--output=jsonpath={.metadata.ownerReferences[*].uid}"
        )
        return found.stdout == uid

    kubectl.wait_until("a Deployment of the new service", is_owned)


def test_a_change_of_the_spec_rolls_out_before_the_old_replica_goes(operator, kubectl):
    make_ready(kubectl)
    (old,) = pods(kubectl)

    kubectl.apply(service(engine={"maxModelLen": 1024}))

    new = next(pod for pod in wait_for_pods(kubectl, 2) if pod["metadata"]["name"] != name_of(old))
    assert "--max-model-len=1024" in new["spec"]["containers"][0]["args"]
    kubectl.wait_until("rolling out", has_reason(kubectl, "RollingOut"))
    assert condition(kubectl, "Available")["status"] == "True"

    answer(kubectl, new)

    kubectl.wait_until("the rollout is over", has_reason(kubectl, "AllReplicasReady"))
    assert [name_of(pod) for pod in pods(kubectl)] == [name_of(new)]


def name_of(pod):
    return pod["metadata"]["name"]


def test_scaling_touches_no_pod_that_runs(operator, kubectl):
    make_ready(kubectl)
    (before,) = pods(kubectl)

    kubectl("scale", "osvc/chat", "--replicas=3")

    after = wait_for_pods(kubectl, 3)
    assert name_of(before) in [name_of(pod) for pod in after]
    assert len(kubectl.get("replicasets")["items"]) == 1
    selector = kubectl.get("osvc", "chat", "--subresource=scale")["status"]["selector"]
    assert selector == "serving.octavo.dev/service=chat"


def test_scaling_to_zero_is_told(operator, kubectl):
    make_ready(kubectl)

    kubectl("scale", "osvc/chat", "--replicas=0")

    kubectl.wait_until("scaled to zero", has_reason(kubectl, "ScaledToZero"))
    assert condition(kubectl, "Degraded")["status"] == "False"


CRASHED = {"exitCode": 2, "reason": "Error", "containerID": "containerd://x"}


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (
            {
                "terminated": {
                    **CRASHED,
                    "message": '{"reason": "ModelUnreadable", "message": "no config.json"}',
                }
            },
            "ModelUnreadable",
            "ended: no config.json",
        ),
        ({"terminated": {**CRASHED, "reason": "OOMKilled"}}, "OOMKilled", "killed for memory"),
        ({"terminated": CRASHED}, "CrashLoop", "exit code 2"),
        (
            {"waiting": {"reason": "ErrImageNeverPull", "message": "…"}},
            "ImagePull",
            "cannot get image localhost/octavo-engine:absent",
        ),
    ],
)
def test_trouble_of_a_pod_is_told_with_pod_and_cause(operator, kubectl, state, reason, words):
    kubectl.apply(service())
    (pod,) = wait_for_pods(kubectl, 1)
    container = {
        "name": "engine",
        "image": pod["spec"]["containers"][0]["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 1,
        "state": state,
    }

    set_status(kubectl, pod, {"phase": "Pending", "containerStatuses": [container]})

    kubectl.wait_until(reason, has_reason(kubectl, reason))
    for condition_type in ("Ready", "Degraded", "Available"):
        told = condition(kubectl, condition_type)
        assert name_of(pod) in told["message"]
        assert words in told["message"]


def test_an_operator_that_was_cut_off_catches_up(start_operator, kubectl):
    """Longer than the Lease is renewed: it rests, and then tells and does what it has missed."""
    line = CutLine(kubectl("config", "view", "--minify", "--output=jsonpath={..server}"))
    lease = {
        "name": "octavo-operator",
        "durationSeconds": 4,
        "renewDeadlineSeconds": 2,
        "retrySeconds": 0.5,
    }
    try:
        operator = start_operator(through=line.url, lease=lease)
        make_ready(kubectl)
        line.cut()
        operator.wait_for_line("lease not renewed in time: resting until it is")
        kubectl.apply(service(replicas=2))
        kubectl("delete", "service", "chat")

        line.mend()

        wait_for_pods(kubectl, 2)
        kubectl.wait_until(
            "the Service is back", lambda: kubectl.tried("get", "service", "chat").returncode == 0
        )
        assert operator.is_running, "the same process all the time"
    finally:
        line.remove()


def test_a_lost_replica_is_told(operator, kubectl):
    make_ready(kubectl, replicas=2)
    lost = pods(kubectl)[0]

    answer(kubectl, lost, is_ready=False)

    kubectl.wait_until("one is missing", has_reason(kubectl, "MinimumReplicasUnavailable"))
    assert condition(kubectl)["message"].startswith("1 of 2 replicas answer; pod ")
    assert condition(kubectl, "Available")["status"] == "True"


def test_a_pod_that_fits_nowhere_is_told(operator, kubectl, api_server):
    kubectl.apply(service())
    kubectl.wait_until("a pod", lambda: pods(kubectl))
    if api_server.num_nodes == 0:  # no scheduler judges: its sentence is written for it
        sentence = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector."
        unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        status = {"conditions": [{**unplaced, "message": sentence}]}
        set_status(kubectl, pods(kubectl)[0], status)

    kubectl.wait_until("unschedulable", has_reason(kubectl, "Unschedulable"))
    told = condition(kubectl)["message"]
    assert told.startswith(f"pod {name_of(pods(kubectl)[0])} fits on no node: ")
    assert "node" in told


def test_a_quota_is_told(operator, kubectl):
    kubectl("create", "quota", "none", "--hard=pods=0")

    kubectl.apply(service())

    kubectl.wait_until("quota", has_reason(kubectl, "QuotaExceeded"))
    assert "exceeded quota: none" in condition(kubectl)["message"]


def test_a_taken_name_is_told_and_the_object_left_alone(operator, kubectl):
    kubectl("create", "deployment", "chat", "--image=theirs")

    kubectl.apply(service())

    kubectl.wait_until("taken", has_reason(kubectl, "NameTaken", "Accepted"))
    assert "Deployment 'chat' exists" in condition(kubectl, "Accepted")["message"]
    theirs = kubectl.get("deployment", "chat")["spec"]["template"]["spec"]["containers"]
    assert [container["image"] for container in theirs] == ["theirs"]


def test_what_changes_while_the_operator_is_dead_is_carried_out_afterwards(start_operator, kubectl):
    operator = start_operator()
    make_ready(kubectl)
    operator.kill()
    kubectl.apply(service(replicas=2))
    kubectl("delete", "service", "chat")

    operator.start()

    wait_for_pods(kubectl, 2)
    kubectl.wait_until(
        "the Service is back", lambda: kubectl.tried("get", "service", "chat").returncode == 0
    )


def test_an_operator_told_to_stop_ends_well_and_a_standby_goes_on(start_operator, kubectl):
    first = start_operator("first")
    first.wait_for_line("lease acquired")
    standby = start_operator("standby")
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    assert not [line for line in standby.log() if line["event"] in ("applied", "status")]

    begun_s = time.monotonic()
    assert first.stop() == 0
    standby.wait_for_line("lease acquired")

    assert time.monotonic() - begun_s < 10, "the Lease was given back, not left to run out"
    kubectl.apply(service(replicas=2))
    wait_for_pods(kubectl, 2)


def test_a_standby_goes_on_after_a_kill(start_operator, kubectl):
    lease = {
        "name": "octavo-operator",
        "durationSeconds": 3,
        "renewDeadlineSeconds": 2,
        "retrySeconds": 0.5,
    }
    first = start_operator("first", lease=lease)
    first.wait_for_line("lease acquired")
    standby = start_operator("standby", lease=lease)
    first.kill()

    standby.wait_for_line("lease acquired", timeout_s=20)

    kubectl.apply(service())
    wait_for_pods(kubectl, 1)


def test_an_operator_that_loses_its_lease_ends(start_operator, kubectl):
    operator = start_operator()
    operator.wait_for_line("lease acquired")

    patch = '{"spec": {"holderIdentity": "somebody"}}'
    kubectl("patch", "lease", "octavo-operator", "--type=merge", f"--patch={patch}")

    assert operator.wait_for_end() == 1
    assert operator.log()[-1]["error"] == "another operator holds the Lease"


def test_health_and_metrics_tell_of_the_work(operator, kubectl):
    make_ready(kubectl)

    assert operator.get("/healthz").text == "ok\n"
    applied = operator.samples("octavo_operator_applied_objects_total")
    assert applied[("cause", "missing"), ("kind", "Deployment")] == 1


def test_applying_the_same_again_and_again_changes_nothing(operator, kubectl):
    """As GitOps tools do, under a manager of their own."""
    make_ready(kubectl)
    before = kubectl.get("osvc", "chat")

    for _ in range(3):
        kubectl.apply(service())

    after = kubectl.get("osvc", "chat")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    assert after["status"] == before["status"]
    managed = kubectl.get("osvc", "chat", "--show-managed-fields")["metadata"]["managedFields"]
    ours = [entry for entry in managed if entry["manager"] == "octavo-operator"]
    assert [entry.get("subresource") for entry in ours] == ["status"]


def test_the_role_is_what_is_used_and_no_more(operator, kubectl, api_server):
    make_ready(kubectl)
    kubectl("delete", "service", "chat")
    kubectl.wait_until("back", lambda: kubectl.tried("get", "service", "chat").returncode == 0)

    renewal = (("code", "200"), ("resource", "leases"), ("verb", "PUT"))
    calls = "octavo_operator_api_calls_total"
    kubectl.wait_until("the Lease renewed", lambda: renewal in operator.samples(calls))

    used = {(kind.plural, "watch") for kind in WATCHED_KINDS}
    for labels in operator.samples(calls):
        call = dict(labels)
        used |= {(call["resource"], verb) for verb in VERBS[call["verb"]]}
    # A status is patched, never the service; and the right to set blockOwnerDeletion is no call.
    used.remove(("inferenceservices", "patch"))
    used.remove(("inferenceservices", "create"))
    used |= {("inferenceservices/status", "patch"), ("inferenceservices/finalizers", "update")}

    granted = {
        (resource, verb)
        for role in roles(api_server, kubectl.namespace)
        for rule in role.get("rules", [])
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert used == granted


VERBS = {
    "GET": ["get"],
    "LIST": ["list"],
    "PATCH": ["patch", "create"],
    "POST": ["create"],
    "PUT": ["update"],
}
"""Method -> verbs; a server-side apply asks for both, since it may create."""
