"""The kind PodMonitor without Prometheus' operator: as much of its definition as a test needs."""

from typing import Any

NAME = "podmonitors.monitoring.coreos.com"
_DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": NAME},
    "spec": {
        "group": "monitoring.coreos.com",
        "names": {
            "kind": "PodMonitor",
            "listKind": "PodMonitorList",
            "plural": "podmonitors",
            "singular": "podmonitor",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["selector", "podMetricsEndpoints"],
                                "x-kubernetes-preserve-unknown-fields": True,
                            }
                        },
                    }
                },
            }
        ],
    },
}


class PodMonitorKind:
    def __init__(self, kubectl: Any) -> None:
        self._kubectl = kubectl

    def is_there(self) -> bool:
        return bool(self._kubectl.tried("get", "crd", NAME).returncode == 0)

    def install(self) -> None:
        self._kubectl.apply(_DEFINITION)
        waiting = ("wait", "--for=condition=Established", f"crd/{NAME}", "--timeout=5s")
        # kubectl stumbles over a status that has no conditions yet.
        self._kubectl.wait_until("the kind", lambda: not self._kubectl.tried(*waiting).returncode)

    def remove(self) -> None:
        self._kubectl("delete", "crd", NAME, "--ignore-not-found", "--timeout=60s")
