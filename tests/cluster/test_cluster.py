"""The session's cluster does what the other tests and the demo rely on."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.cluster.addons import GPU_RESOURCE
from tests.cluster.hostenv import ENGINE_IMAGE, engine_archive, engine_overlay
from tests.cluster.provider import ClusterInfo, Provider
from tests.cluster.state import REPOSITORY
from tests.cluster.testing import Kubectl, Manifest, wait_for
from tests.cluster_plugin import SESSION_GPUS

pytestmark = pytest.mark.cluster

_FETCH = "import sys, urllib.request as u; print(u.urlopen(sys.argv[1], timeout=5).read().decode())"
_SERVE = """
import http.server
class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")
http.server.HTTPServer(("", 8000), Hello).serve_forever()
"""


@pytest.fixture(scope="module")
def kubectl(cluster: ClusterInfo, cluster_provider: Provider) -> Iterator[Kubectl]:
    cluster_provider.load_image(engine_archive())
    with Kubectl.in_new_namespace(cluster, "cluster-tests") as kubectl:
        yield kubectl


def _pod_template(kubectl: Kubectl, app: str, command: list[str], **container: Any) -> Manifest:
    """A pod of the engine's test image, as locked down as the operator makes them."""
    overlay = engine_overlay(node_prefix=kubectl.cluster.node_prefix)["spec"]
    shared = overlay["containers"][0]
    own = {
        "image": ENGINE_IMAGE,
        "imagePullPolicy": "Never",
        "command": command,
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    mounts = [*shared["volumeMounts"], {"name": "tmp", "mountPath": "/tmp"}]
    return {
        "metadata": {"labels": {"app": app}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
            "containers": [{**shared, **own, "volumeMounts": mounts, **container}],
            "volumes": [*overlay["volumes"], {"name": "tmp", "emptyDir": {}}],
        },
    }


def _deployment(name: str, replicas: int, template: Manifest) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": name}},
            "template": template,
        },
    }


def _service(name: str) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8000}]},
    }


@pytest.fixture(scope="module")
def hello(kubectl: Kubectl) -> str:
    """The name of a Deployment and Service that answer "hello"."""
    probe = {"httpGet": {"path": "/", "port": 8000}, "periodSeconds": 1}
    template = _pod_template(kubectl, "hello", ["python3", "-c", _SERVE], readinessProbe=probe)
    kubectl.apply(_deployment("hello", 1, template), _service("hello"))
    kubectl("rollout", "status", "deployment/hello", "--timeout=60s")
    return "hello"


def test_a_pod_reaches_a_service_by_name(kubectl: Kubectl, hello: str) -> None:
    fetch = ["exec", f"deployment/{hello}", "--", "python3", "-c", _FETCH]

    def answer() -> str:
        return kubectl(*fetch, f"http://{hello}.{kubectl.namespace}.svc.cluster.local/")

    assert wait_for("an answer by name", answer, timeout_s=20).strip() == "hello"


def test_an_unknown_name_in_the_cluster_does_not_exist(kubectl: Kubectl, hello: str) -> None:
    resolve = "import socket\ntry: socket.getaddrinfo('nobody', 80)\nexcept OSError as e: print(e)"
    said = kubectl("exec", f"deployment/{hello}", "--", "python3", "-c", resolve)
    assert "Name or service not known" in said


def test_this_machine_reaches_a_service(kubectl: Kubectl, hello: str) -> None:
    if not kubectl.cluster.reaches_services:
        pytest.skip(f"Services of provider {kubectl.cluster.provider} need a port-forward")
    address = kubectl.get("service", hello)["spec"]["clusterIP"]

    with urllib.request.urlopen(f"http://{address}/", timeout=5) as response:
        assert response.read() == b"hello"


def test_more_gpus_than_there_are_stay_pending(kubectl: Kubectl, hello: str) -> None:
    resources = {"limits": {GPU_RESOURCE: "1"}}
    sleep = ["python3", "-c", "import time; time.sleep(600)"]
    template = _pod_template(kubectl, "gpus", sleep, resources=resources)
    kubectl.apply(_deployment("gpus", SESSION_GPUS + 1, template))

    def phases() -> list[str]:
        pods = kubectl.get("pods", "--selector=app=gpus")["items"]
        return sorted(pod["status"].get("phase", "") for pod in pods)

    wanted = ["Pending", *["Running"] * SESSION_GPUS]
    wait_for("all GPUs taken", lambda: phases() == wanted)
    pending = kubectl.get("pods", "--selector=app=gpus", "--field-selector=status.phase=Pending")
    conditions = pending["items"][0]["status"]["conditions"]
    messages = [c["message"] for c in conditions if c["type"] == "PodScheduled"]
    kubectl("delete", "deployment", "gpus")
    assert f"Insufficient {GPU_RESOURCE}" in messages[0]


def test_a_pod_runs_the_packages_of_this_checkout(kubectl: Kubectl, hello: str) -> None:
    where = "import msgspec, octavo_engine; print(octavo_engine.__file__)"
    said = kubectl("exec", f"deployment/{hello}", "--", "python3", "-c", where)
    assert said.strip() == str(REPOSITORY / "engine" / "octavo_engine" / "__init__.py")


def test_pods_of_a_node_share_what_they_compile(
    kubectl: Kubectl, hello: str, cluster: ClusterInfo
) -> None:
    if cluster.provider != "local":
        pytest.skip(f"nodes of provider {cluster.provider} have no folder for it")
    cached = "import msgspec, os; print(os.path.exists(msgspec.__cached__))"
    said = kubectl("exec", f"deployment/{hello}", "--", "python3", "-c", cached)
    assert said.strip() == "True"


def test_a_pod_cannot_write_to_this_machine(kubectl: Kubectl, hello: str) -> None:
    write = "open('/usr/octavo-was-here', 'w')"
    with pytest.raises(Exception, match="Read-only file system"):
        kubectl("exec", f"deployment/{hello}", "--", "python3", "-c", write)
