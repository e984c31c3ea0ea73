"""What tests about the cluster share: kubectl in a namespace of the test's own, and waiting."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from tests.cluster.errors import CommandFailed
from tests.cluster.provider import ClusterInfo
from tests.cluster.run import run

Manifest = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class Kubectl:
    """kubectl for one cluster and namespace."""

    cluster: ClusterInfo
    namespace: str

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        where = (f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={self.namespace}")
        return run([self.cluster.kubectl, *where, *words], stdin=stdin, timeout_s=120)

    def get(self, *words: str) -> Manifest:
        found: Manifest = json.loads(self("get", *words, "--output=json"))
        return found

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self("apply", "--filename=-", stdin=json.dumps(listed))

    @staticmethod
    @contextlib.contextmanager
    def in_new_namespace(cluster: ClusterInfo, namespace: str) -> Iterator[Kubectl]:
        """Makes the namespace, waits until pods may be made in it, and deletes it afterwards."""
        kubectl = Kubectl(cluster, namespace)
        kubectl("create", "namespace", namespace)
        wait_for("default ServiceAccount", lambda: kubectl("get", "serviceaccount", "default"))
        yield kubectl
        kubectl("delete", "namespace", namespace, "--wait=false")


def wait_for(what: str, ask: Callable[[], T], *, timeout_s: float = 60) -> T:
    """The first true answer of `ask`; a kubectl that fails has not answered yet."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            if answer := ask():
                return answer
        except CommandFailed as error:
            last = error
        time.sleep(0.2)
    raise AssertionError(f"{what}: not so after {timeout_s:.0f} s; {last or ''}")


def daemon_pid(folder: Path, daemon: str) -> int:
    """The pid of a node's daemon in the node's own pid namespace."""
    return int(json.loads((folder / "pids.json").read_text())[daemon])
