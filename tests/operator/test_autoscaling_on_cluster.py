"""Who sets the number of replicas: the operator by the load, or others by the scale subresource.

The pods' engines are stand-ins here: a web server on an address of loopback, which a test writes
into the pod's status. Real engines are in tests/e2e.
"""

import json
import random
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.operator.cluster_operator import place, pods, service, set_status

from octavo_operator.engine_args import ENGINE_PORT

pytestmark = pytest.mark.cluster

SCALED = {"maxReplicas": 3, "scaleDownStabilizationSeconds": 2}
REFUSAL = (
    "replicas must be left out where autoscaling is set, since the operator scales then; "
    "for kubectl scale or a HorizontalPodAutoscaler remove autoscaling"
)

WRONG = {
    "two writers": ({"replicas": 2, "autoscaling": SCALED}, REFUSAL),
    "no maximum": ({"autoscaling": {"minReplicas": 1}}, "spec.autoscaling.maxReplicas: Required"),
    "maximum below minimum": (
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "minReplicas must not be above maxReplicas",
    ),
    "no replica at all": (
        {"autoscaling": {"minReplicas": 0, "maxReplicas": 2}},
        "minReplicas must be between 1 and 512, since nothing wakes a service that has no replica",
    ),
    "maximum": ({"autoscaling": {"maxReplicas": 513}}, "maxReplicas must be between 1 and 512"),
    "pending": (
        {"autoscaling": {**SCALED, "targets": {"pendingRequestsPerReplica": 0}}},
        "pendingRequestsPerReplica must be between 1 and 10000",
    ),
    "use": (
        {"autoscaling": {**SCALED, "targets": {"kvCacheUsePercent": 101}}},
        "kvCacheUsePercent must be between 1 and 100",
    ),
    "window": (
        {"autoscaling": {**SCALED, "scaleDownStabilizationSeconds": -1}},
        "scaleDownStabilizationSeconds must be between 0 and 86400",
    ),
}


class StandIn:
    """Tells a load on port 8000 of an address of its own."""

    def __init__(self, number):
        self.address = f"127.{number >> 8}.{number & 255}.2"
        self.num_pending = self.num_running = 0
        self.is_well = True

        class Handler(BaseHTTPRequestHandler):
            def do_GET(handler):  # noqa: N805  # `self` is the test's own
                handler.send_response(200 if self.is_well else 500)
                handler.end_headers()
                handler.wfile.write(self._text().encode())

            def log_message(handler, *_):  # noqa: N805  # `self` is the test's own
                pass

        self.server = ThreadingHTTPServer((self.address, ENGINE_PORT), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def _text(self):
        return (
            f"vllm:num_requests_waiting {self.num_pending}\n"
            f"vllm:num_requests_running {self.num_running}\n"
            "vllm:kv_cache_usage_perc 0.1\n"
            "octavo:max_num_seqs 8\n"
        )

    def stop(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@contextmanager
def stand_ins(number):
    first = random.randrange(256, 65_000)
    made = [StandIn(first + idx) for idx in range(number)]
    try:
        yield made
    finally:
        for engine in made:
            engine.stop()


def make_ready(kubectl, engines):
    """Writes into the status of each pod what a kubelet would: Ready, at an engine's address."""
    taken = {pod["status"].get("podIP") for pod in pods(kubectl)}
    free = [engine for engine in engines if engine.address not in taken]
    for pod in pods(kubectl):
        if "podIP" in pod["status"]:
            continue
        place(kubectl, pod)
        conditions = [
            {"type": kind, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}
            for kind in ("Ready", "ContainersReady")
        ]
        address = free.pop(0).address
        status = {"phase": "Running", "conditions": conditions, "podIP": address}
        set_status(kubectl, pod, {**status, "podIPs": [{"ip": address}]})


def deployed(kubectl):
    return kubectl.get("deployment", "chat")["spec"]["replicas"]


def told(kubectl):
    return kubectl.get("osvc", "chat").get("status", {}).get("autoscaling", {})


@pytest.fixture(scope="module")
def operator_settings():
    return {"samples": {"intervalSeconds": 0.3}}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_autoscaling_is_refused(kubectl_shared, case):
    spec, sentence = WRONG[case]
    body = json.dumps(service(**spec))

    result = kubectl_shared.tried("create", "--dry-run=server", "--filename=-", stdin=body)

    assert result.returncode != 0
    assert sentence in result.stderr


def test_the_load_sets_the_number_and_the_status_says_why(shared_operator, kubectl):
    kubectl.apply(service(autoscaling=SCALED))
    kubectl.wait_until("a pod", lambda: len(pods(kubectl)) == 1)
    with stand_ins(3) as engines:
        make_ready(kubectl, engines)
        engines[0].num_running, engines[0].num_pending = 8, 20

        kubectl.wait_until("3 replicas", lambda: deployed(kubectl) == 3)
        kubectl.wait_until("told", lambda: told(kubectl).get("replicas") == 3)
        status = told(kubectl)
        assert status["reason"] == "PendingRequests"
        assert status["inputs"]["pendingRequests"] == 20
        assert status["terms"]["pendingRequests"] == 3
        assert kubectl.get("osvc", "chat")["spec"]["replicas"] == 1, "the spec is the user's"
        row = dict(
            zip(*(line.split() for line in kubectl("get", "osvc").splitlines()), strict=False)
        )
        assert row["REPLICAS"] == "3"

        kubectl.wait_until("3 pods", lambda: len(pods(kubectl)) == 3)
        make_ready(kubectl, engines)
        engines[0].num_running = engines[0].num_pending = 0
        kubectl.wait_until("1 replica", lambda: deployed(kubectl) == 1)
        kubectl.wait_until("told", lambda: told(kubectl)["replicas"] == 1)
        assert told(kubectl)["reason"] == "LowDemand"


def test_replicas_that_do_not_tell_their_load_are_kept(shared_operator, kubectl):
    kubectl.apply(service(autoscaling={**SCALED, "minReplicas": 2}))
    kubectl.wait_until("2 pods", lambda: len(pods(kubectl)) == 2)
    with stand_ins(2) as engines:
        make_ready(kubectl, engines)
        engines[1].is_well = False
        # Now one would be enough by what can be read.
        kubectl.apply(service(autoscaling=SCALED))

        kubectl.wait_until("told", lambda: told(kubectl).get("reason") == "SamplesMissing")
        assert told(kubectl)["inputs"]["unreadReplicas"] == 1
        assert deployed(kubectl) == 2
        key = (("namespace", kubectl.namespace), ("service", "chat"), ("value", "replicas"))
        assert shared_operator.samples("octavo_operator_autoscaling")[key] == 2

        engines[1].is_well = True
        kubectl.wait_until("1 replica", lambda: deployed(kubectl) == 1)


def test_a_foreign_number_in_the_deployment_is_put_back(shared_operator, kubectl):
    kubectl.apply(service(autoscaling={**SCALED, "minReplicas": 2}))
    kubectl.wait_until("2 pods", lambda: len(pods(kubectl)) == 2)

    kubectl("scale", "deployment/chat", "--replicas=3")

    kubectl.wait_until("2 replicas", lambda: deployed(kubectl) == 2)


def test_kubectl_scale_is_refused_beside_autoscaling(shared_operator, kubectl):
    kubectl.apply(service(autoscaling=SCALED))

    result = kubectl.tried("scale", "osvc/chat", "--replicas=2")

    assert result.returncode != 0
    assert REFUSAL in result.stderr


def test_from_a_fixed_number_to_autoscaling_and_back(shared_operator, kubectl):
    """The number goes on from where it was; what scaled from outside must be taken away first."""
    kubectl.apply(service(replicas=3))
    kubectl.wait_until("3 pods", lambda: len(pods(kubectl)) == 3)
    patch = '{"spec": {"autoscaling": {"maxReplicas": 4}}}'
    result = kubectl.tried("patch", "osvc", "chat", "--type=merge", f"--patch={patch}")
    assert REFUSAL in result.stderr

    kubectl.apply(service(autoscaling={"maxReplicas": 4}))
    kubectl.wait_until("told", lambda: told(kubectl).get("replicas") == 3)
    assert deployed(kubectl) == 3

    kubectl.apply(service(replicas=2))
    kubectl.wait_until("2 replicas", lambda: deployed(kubectl) == 2)
    kubectl.wait_until("untold", lambda: told(kubectl) == {})


def test_a_horizontal_pod_autoscaler_scales_a_fixed_number_and_no_other(shared_operator, kubectl):
    """It raises to its minimum without any metrics, which are not there."""
    kubectl.apply(service("chat"), service("scaled", autoscaling=SCALED))
    kubectl.apply(*(horizontal_pod_autoscaler(name) for name in ("chat", "scaled")))

    kubectl.wait_until("2 replicas", lambda: deployed(kubectl) == 2, 60)
    kubectl.wait_until("refused", lambda: able_to_scale(kubectl, "scaled")["status"] == "False")
    assert REFUSAL in able_to_scale(kubectl, "scaled")["message"]
    assert able_to_scale(kubectl, "chat")["status"] == "True"
    assert kubectl.get("deployment", "scaled")["spec"]["replicas"] == 1


def horizontal_pod_autoscaler(name):
    group = "serving.octavo.dev/v1alpha1"
    metric = {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name},
        "spec": {
            "scaleTargetRef": {"apiVersion": group, "kind": "InferenceService", "name": name},
            "minReplicas": 2,
            "maxReplicas": 4,
            "metrics": [{"type": "Resource", "resource": metric}],
        },
    }


def able_to_scale(kubectl, name):
    conditions = kubectl.get("hpa", name).get("status", {}).get("conditions", [])
    found = [one for one in conditions if one["type"] == "AbleToScale"]
    return found[0] if found else {"status": "", "message": ""}
