"""Where a walk takes place: a cluster, a namespace, and how to ask about what is there.

Everything goes through kubectl and the Service's address, as a user would; nothing here knows the
operator's or the engine's code.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.audit import Call
from tests.cluster.provider import ClusterInfo
from tests.cluster.run import run

Manifest = dict[str, Any]

OPERATOR_NAMESPACE = "octavo-system"
OPERATOR_ACCOUNT = "octavo-operator"
OPERATOR_PODS = "app.kubernetes.io/name=octavo-operator"
SERVICE_LABEL = "serving.octavo.dev/service"
SERVICE = "osvc/smollm2"
READY_WITHIN_S = 600


class NotSo(AssertionError):
    """Something that had to become true did not in time; the text says what was there instead."""


@dataclass(frozen=True)
class Stage:
    cluster: ClusterInfo
    namespace: str

    def kubectl(self, *words: str | Path, stdin: str | None = None, timeout_s: float = 60) -> str:
        config = f"--kubeconfig={self.cluster.kubeconfig}"
        argv = [self.cluster.kubectl, config, f"--namespace={self.namespace}", *words]
        return run(argv, stdin=stdin, timeout_s=timeout_s)

    def helm(self, *words: str | Path, timeout_s: float = 300) -> str:
        config = f"--kubeconfig={self.cluster.kubeconfig}"
        return run([self.cluster.helm, config, *words], timeout_s=timeout_s)

    def get(self, *words: str) -> Manifest:
        """One object, or a list as `{"items": [...]}`."""
        found: Manifest = json.loads(self.kubectl("get", *words, "--output=json"))
        return found

    def operator_may(self, call: Call) -> bool:
        """Whether the Roles, as they are now, let the operator do this."""
        resource, _, subresource = call.resource.partition("/")
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": f"system:serviceaccount:{OPERATOR_NAMESPACE}:{OPERATOR_ACCOUNT}",
                "resourceAttributes": {
                    "namespace": call.namespace,
                    "verb": call.verb,
                    "group": call.group,
                    "resource": resource,
                    "subresource": subresource,
                    "name": call.name,
                },
            },
        }
        words = ("create", "--filename=-", "--output=json")
        answer: Manifest = json.loads(self.kubectl(*words, stdin=json.dumps(review)))
        return bool(answer["status"]["allowed"])

    def pods(self, *, selector: str | None = None) -> list[Manifest]:
        chosen = selector or f"{SERVICE_LABEL}=smollm2"
        return list(self.get("pods", f"--selector={chosen}")["items"])

    def wait_ready(self) -> None:
        """Ready, and told of the newest generation: not the Ready of the spec before."""
        self.wait(f"{SERVICE} Ready", lambda: ready_now(self.get(SERVICE)))

    def wait(
        self, what: str, holds: Callable[[], bool], *, timeout_s: float = READY_WITHIN_S
    ) -> None:
        deadline = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline:
                raise NotSo(f"{what}: not so after {timeout_s:.0f} s\n{self.describe()}")
            time.sleep(0.25)

    def describe(self) -> str:
        """What a person would look at next."""
        chapters: Sequence[tuple[str, ...]] = (
            ("get", "osvc,deployments,pods,endpointslices", "--output=wide"),
            ("describe", "osvc"),
            ("logs", f"--selector={SERVICE_LABEL}", "--tail=20", "--all-containers"),
            ("logs", f"--namespace={OPERATOR_NAMESPACE}", f"-l{OPERATOR_PODS}", "--tail=40"),
        )
        return "\n".join(self._tried(*words) for words in chapters)

    def _tried(self, *words: str) -> str:
        try:
            return self.kubectl(*words)
        except Exception as error:  # a description must not hide what it was asked for
            return f"{' '.join(words)}: {error}"


def ready_now(service: Manifest) -> bool:
    generation = service["metadata"]["generation"]
    return any(
        condition["type"] == "Ready"
        and condition["status"] == "True"
        and condition["observedGeneration"] == generation
        for condition in service.get("status", {}).get("conditions", [])
    )
