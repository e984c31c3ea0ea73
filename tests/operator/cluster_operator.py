"""The operator as a process of its own, against a real API server, with just the chart's Role.

Not a test: what the on-cluster tests share. Pods need not run for them; a test that needs a pod in
some state writes that state into the pod's status, as a kubelet would.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

REPOSITORY = Path(__file__).parents[2]
RELEASE = "octavo"
NOWHERE = {"octavo.test/node": "nowhere"}
"""A node selector that no node has, so that no kubelet writes into our pods."""

_READS = ("GET", "LIST", "DISCOVER")


class OperatorProcess:
    """`octavo-operator` for one namespace, which it may be killed in and started again."""

    def __init__(self, cluster: Any, kubectl: Any, folder: Path, identity: str) -> None:
        self._cluster = cluster
        self._kubectl = kubectl
        self._folder = folder
        self._identity = identity
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / f"{identity}.log"
        self._kubeconfig = folder / f"{identity}.kubeconfig"
        self._config = folder / f"{identity}.yaml"

    def start(
        self, *, through: str | None = None, release: Path | None = None, **settings: Any
    ) -> "OperatorProcess":
        """`through`: another address of the API server; `settings` go into the config file.

        `release`: another checkout, whose operator is run in place of this one's.
        """
        self._write_kubeconfig(through)
        config = {
            "engine": {"image": "localhost/octavo-engine:absent", "imagePullPolicy": "Never"},
            "watchNamespaces": [self._kubectl.namespace],
            "healthHost": "127.0.0.1",
            "healthPort": 0,
            "lease": {"name": f"{RELEASE}-operator"},
            **settings,
        }
        self._config.write_text(json.dumps(config))
        environment = {
            **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
            "KUBECONFIG": str(self._kubeconfig),
            "POD_NAME": self._identity,
            "POD_NAMESPACE": self._kubectl.namespace,
        }
        if release is not None:
            environment["PYTHONPATH"] = str(release / "operator")
        self._log.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "octavo_operator", f"--config={self._config}"],
                env=environment,
                stderr=log,
                stdout=log,
            )
        self.wait_for_line("started")
        return self

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def wait_for_end(self) -> int:
        """Its exit code, once it ends by itself."""
        assert self._process is not None
        code = self._process.wait(timeout=60)
        self._process = None
        return code

    def _end(self, number: signal.Signals) -> int:
        if self._process is None:
            return 0
        self._process.send_signal(number)
        code = self._process.wait(timeout=30)
        self._process = None
        return code

    def log(self) -> list[dict[str, Any]]:
        """The lines so far, each parsed."""
        lines = self._log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.endswith("}")]

    def wait_for_line(self, event: str, timeout_s: float = 60) -> dict[str, Any]:
        deadline_s = time.monotonic() + timeout_s
        while True:
            for line in self.log():
                if line["event"] == event:
                    return line
            if self._process is None or self._process.poll() is not None:
                raise AssertionError(f"the operator has ended:\n{self._log.read_text()}")
            if time.monotonic() > deadline_s:
                raise AssertionError(f"no line {event!r}:\n{self._log.read_text()}")
            time.sleep(0.1)

    def get(self, path: str) -> httpx.Response:
        port = self.wait_for_line("started")["health_port"]
        with httpx.Client(trust_env=False) as client:
            return client.get(f"http://127.0.0.1:{port}{path}")

    def samples(self, name: str) -> dict[tuple[tuple[str, str], ...], float]:
        """Labels -> value of one metric."""
        return {
            tuple(sorted(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(self.get("/metrics").text)
            for sample in family.samples
            if sample.name == name
        }

    def num_writes(self) -> float:
        calls = self.samples("octavo_operator_api_calls_total")
        return sum(
            value
            for labels, value in calls.items()
            if dict(labels)["verb"] not in _READS and dict(labels)["resource"] != "leases"
        )

    def num_resyncs(self) -> int:
        """How often everything was listed; pods are the last kind of a listing."""
        calls = self.samples("octavo_operator_api_calls_total")
        key = (("code", "200"), ("resource", "pods"), ("verb", "LIST"))
        return int(calls.get(key, 0))

    def memory_mib(self, field: str) -> float:
        """`VmRSS` now, or `VmHWM` at its highest."""
        assert self._process is not None
        lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        return round(next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024)

    def cpu_s(self) -> float:
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _write_kubeconfig(self, through: str | None) -> None:
        token = self._kubectl("create", "token", f"{RELEASE}-operator", "--duration=1h").strip()
        given = yaml.safe_load(Path(self._cluster.kubeconfig).read_text())
        context = next(c for c in given["contexts"] if c["name"] == given["current-context"])
        name = context["context"]["cluster"]
        given["clusters"] = [c for c in given["clusters"] if c["name"] == name]
        if through is not None:
            # The certificate is made out to the API server's own address.
            line = {"server": through, "insecure-skip-tls-verify": True}
            given["clusters"] = [{"name": name, "cluster": line}]
        given["users"] = [{"name": "operator", "user": {"token": token}}]
        given["contexts"] = [{"name": "c", "context": {"cluster": name, "user": "operator"}}]
        given["current-context"] = "c"
        self._kubeconfig.write_text(yaml.safe_dump(given))


def roles(
    cluster: Any,
    namespace: str,
    *,
    cluster_wide: bool = False,
    checkout: Path = REPOSITORY,
) -> list[dict[str, Any]]:
    """The chart's ServiceAccount, Roles and bindings, for one watched namespace or for all."""
    watched = () if cluster_wide else ("--set", f"watchNamespaces={{{namespace}}}")
    rendered = subprocess.run(
        [
            *(cluster.helm, "template", RELEASE, checkout / "charts" / "octavo"),
            *("--namespace", namespace, *watched),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    return [doc for doc in yaml.safe_load_all(rendered.stdout) if doc and doc["kind"] in kinds]


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "serving.octavo.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {"model": {"uri": "file:///models/chat"}, "nodeSelector": NOWHERE, **spec},
    }


def condition(kubectl: Any, condition_type: str = "Ready", name: str = "chat") -> dict[str, Any]:
    """The condition of the service's newest generation; empty while it is not told yet."""
    found = kubectl.get("osvc", name)
    if found.get("status", {}).get("observedGeneration") != found["metadata"]["generation"]:
        return {}
    conditions = found["status"]["conditions"]
    return next(c for c in conditions if c["type"] == condition_type)


def pods(kubectl: Any, name: str = "chat") -> list[dict[str, Any]]:
    selector = f"serving.octavo.dev/service={name}"
    return [
        pod
        for pod in kubectl.get("pods", f"--selector={selector}")["items"]
        if "deletionTimestamp" not in pod["metadata"]
    ]


def place(kubectl: Any, pod: dict[str, Any]) -> None:
    """Bind a pod to a node that does not exist: no scheduler judges it, and no kubelet runs it.

    The garbage collector removes such pods, for each new name of a node not before 40 s.
    """
    if "nodeName" in pod["spec"]:
        return
    name = pod["metadata"]["name"]
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": f"nowhere-{name}"},
    }
    path = f"/api/v1/namespaces/{kubectl.namespace}/pods/{name}/binding"
    kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(binding))


def answer(kubectl: Any, pod: dict[str, Any], *, is_ready: bool = True) -> None:
    """Write into a pod's status what a kubelet would once it answers, or has ceased to."""
    status = "True" if is_ready else "False"
    conditions = [
        {"type": kind, "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
        for kind in ("Ready", "ContainersReady")
    ]
    set_status(kubectl, pod, {"phase": "Running", "conditions": conditions})


def set_status(kubectl: Any, pod: dict[str, Any], status: dict[str, Any]) -> None:
    patch = json.dumps({"status": status})
    kubectl("patch", "pod", pod["metadata"]["name"], "--subresource=status", f"--patch={patch}")


def engine_container(pod: dict[str, Any], **status: Any) -> dict[str, Any]:
    """The status of a pod's one container, as a kubelet writes it."""
    return {
        "name": "engine",
        "image": pod["spec"]["containers"][0]["image"],
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        **status,
    }


def fault(kubectl: Any, pod: dict[str, Any]) -> None:
    """Write into a pod's status that it is down by a GPU fault for the third time."""
    words = '{"reason": "GPUFault", "message": "an illegal address"}'
    ended = {"exitCode": 5, "message": words, "containerID": "containerd://x"}
    container = engine_container(
        pod,
        restartCount=2,
        state={"waiting": {"reason": "CrashLoopBackOff"}},
        lastState={"terminated": ended},
    )
    answer(kubectl, pod, is_ready=False)
    set_status(kubectl, pod, {"containerStatuses": [container]})


def name_of(pod: dict[str, Any]) -> str:
    return str(pod["metadata"]["name"])


def has_reason(kubectl: Any, reason: str, condition_type: str = "Ready") -> Callable[[], bool]:
    return lambda: condition(kubectl, condition_type).get("reason") == reason


def wait_for_pods(kubectl: Any, number: int) -> list[dict[str, Any]]:
    """The pods, each bound to a node without a kubelet, for a test to write their status."""
    kubectl.wait_until(f"{number} pods", lambda: len(pods(kubectl)) == number)
    found = pods(kubectl)
    for pod in found:
        place(kubectl, pod)
    return found


def make_ready(kubectl: Any, replicas: int = 1) -> None:
    kubectl.apply(service(replicas=replicas))
    for pod in wait_for_pods(kubectl, replicas):
        answer(kubectl, pod)
    kubectl("wait", "--for=condition=Ready", "osvc/chat", "--timeout=30s")


def wait_until_told(kubectl: Any) -> None:
    """That all is well is the last Event about a service that has become ready: then all rests."""

    def told() -> list[str]:
        items = kubectl.get("events", "--field-selector=involvedObject.name=chat")["items"]
        return [event["reason"] for event in items]

    kubectl.wait_until("the last Event", lambda: "AllReplicasReady" in told())


def remains(kubectl: Any) -> list[dict[str, Any]]:
    """What there is of the service and its children."""
    kinds = (
        "osvc,deployments,replicasets,services,pods,serviceaccounts,"
        "poddisruptionbudgets,networkpolicies,persistentvolumeclaims"
    )
    left = [
        item
        for item in kubectl.get(kinds)["items"]
        if item["metadata"].get("labels", {}).get("serving.octavo.dev/service") == "chat"
        or item["kind"] == "InferenceService"
    ]
    for item in left:
        # Nobody else would end a pod without a node's kubelet.
        if item["kind"] == "Pod" and "deletionTimestamp" in item["metadata"]:
            kubectl.tried("delete", "pod", name_of(item), "--force", "--grace-period=0")
    return left
