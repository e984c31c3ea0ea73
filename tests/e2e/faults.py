"""What tests break on purpose: the operator's process, the API server's process.

Both are killed with SIGKILL from the node they run on, so these need the local provider.
"""

from __future__ import annotations

import json
from pathlib import Path

from tests.cluster.local import LocalProvider
from tests.cluster.network import namespace_of
from tests.cluster.processes import recorded_pid
from tests.cluster.run import run
from tests.e2e.stage import OPERATOR_NAMESPACE, OPERATOR_PODS, Manifest, Stage


def kill_operator(provider: LocalProvider, stage: Stage) -> None:
    """SIGKILL to the operator's process. Its pod is then deleted: a new one has no back-off."""
    names = []
    for pod in _operator_pods(stage):
        names.append(pod["metadata"]["name"])
        for status in pod.get("status", {}).get("containerStatuses", []):
            if "running" in status["state"]:
                container = status["containerID"].removeprefix("containerd://")
                words = ("--namespace=k8s.io", "tasks", "kill", "--signal=SIGKILL", container)
                _on_node(provider, pod["spec"]["nodeName"], provider.program("ctr"), *words)
    if names:
        force = ("--grace-period=0", "--force", "--ignore-not-found")
        stage.kubectl(f"--namespace={OPERATOR_NAMESPACE}", "delete", "pod", *names, *force)


def wait_for_operator(stage: Stage) -> None:
    stage.wait(
        "the operator ready",
        lambda: any(
            status["ready"]
            for pod in _operator_pods(stage)
            for status in pod.get("status", {}).get("containerStatuses", [])
        ),
        timeout_s=120,
    )


def kill_api_server(provider: LocalProvider) -> None:
    """SIGKILL to kube-apiserver; its supervisor starts it again a second later."""
    pids = json.loads((provider.folder.node("node1") / "pids.json").read_text())
    _on_node(provider, "node1", "kill", "-9", str(pids["kube-apiserver"]))


def _operator_pods(stage: Stage) -> list[Manifest]:
    found = stage.get("pods", f"--namespace={OPERATOR_NAMESPACE}", f"--selector={OPERATOR_PODS}")
    return list(found["items"])


def _on_node(provider: LocalProvider, node: str, *argv: str | Path) -> None:
    pid = recorded_pid(provider.folder.process(node))
    if pid is None:
        raise RuntimeError(f"{node} of cluster {provider.name} does not run")
    run([*namespace_of(pid), *argv])
