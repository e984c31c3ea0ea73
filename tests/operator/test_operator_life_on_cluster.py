"""The operator's own life: killed, cut off, relieved, idle."""

import pytest
from tests.operator.cluster_operator import (
    make_ready,
    remains,
    service,
    wait_for_pods,
    wait_until_told,
)
from tests.operator.cut_line import CutLine

pytestmark = pytest.mark.cluster


def test_nothing_is_written_while_nothing_changes(start_operator, kubectl):
    operator = start_operator(resyncSeconds=1)
    make_ready(kubectl)
    wait_until_told(kubectl)
    kubectl.wait_until("quiet", lambda: operator.num_resyncs() >= 2)
    writes, resyncs = operator.num_writes(), operator.num_resyncs()
    version = kubectl.get("osvc", "chat")["metadata"]["resourceVersion"]

    kubectl.wait_until("two resyncs", lambda: operator.num_resyncs() >= resyncs + 2)

    assert operator.num_writes() == writes
    assert kubectl.get("osvc", "chat")["metadata"]["resourceVersion"] == version


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


def test_deleting_needs_no_operator(operator, kubectl):
    cache = {"newClaim": {"size": "1Mi"}}
    kubectl.apply(service(model={"uri": "hf://org/name", "cache": cache}))
    wait_for_pods(kubectl, 1)
    assert kubectl.get("pvc", "chat")["spec"]["accessModes"] == ["ReadWriteOnce"]
    operator.kill()

    kubectl("delete", "osvc", "chat", "--timeout=30s")

    kubectl.wait_until("nothing is left", lambda: not remains(kubectl))


def test_an_operator_told_to_stop_ends_well_and_a_standby_goes_on(start_operator, kubectl):
    lease = {"name": "octavo-operator", "durationSeconds": 600}
    first = start_operator("first", lease=lease)
    first.wait_for_line("lease acquired")
    standby = start_operator("standby", lease=lease)
    kubectl.apply(service())
    wait_for_pods(kubectl, 1)
    assert not [line for line in standby.log() if line["event"] in ("applied", "status")]

    assert first.stop() == 0

    standby.wait_for_line("lease acquired")  # given back: it would run out long after this wait
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
    ready = (("condition", "Ready"), ("status", "True"))
    kubectl.wait_until(
        "counted", lambda: operator.samples("octavo_operator_services").get(ready) == 1
    )
    told = [line for line in operator.log() if line["event"] in ("applied", "status")]
    assert {(line["service"], line["generation"]) for line in told} == {
        (f"{kubectl.namespace}/chat", 1)
    }
