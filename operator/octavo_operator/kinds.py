"""The kinds of Kubernetes objects that the operator deals with, and the names that mark its own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
"""A Kubernetes object, or a part of one, as parsed from JSON."""

GROUP = "serving.octavo.dev"
VERSION = "v1alpha1"
FIELD_MANAGER = "octavo-operator"

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
SERVICE_LABEL = f"{GROUP}/service"
"""On every child and pod: the InferenceService's name. The one label that selects pods."""
MANAGED_SELECTOR = f"{MANAGED_BY_LABEL}={FIELD_MANAGER},{SERVICE_LABEL}"
"""What is watched of children and pods; one that loses a label is told as deleted."""
APPLIED_ANNOTATION = f"{GROUP}/applied"
"""Digest of the manifest that was applied last; tells a changed wish from a drifted object."""
TEMPLATE_ANNOTATION = f"{GROUP}/pod-template"
"""On what keeps the pods: their template as it was applied, and what it was made of."""


@dataclass(frozen=True)
class Kind:
    api_version: str
    name: str
    plural: str

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        """Path of the collection (of one namespace, or of all), or of one object."""
        path = self.group_path
        if namespace is not None:
            path += f"/namespaces/{namespace}"
        path += f"/{self.plural}"
        return path if name is None else f"{path}/{name}"

    @property
    def group_path(self) -> str:
        """Tells all kinds of its group's version."""
        root = "/api/" if "/" not in self.api_version else "/apis/"
        return root + self.api_version

    @property
    def group_version(self) -> tuple[str, str]:
        group, _, version = self.api_version.rpartition("/")
        return group, version


INFERENCE_SERVICE = Kind(f"{GROUP}/{VERSION}", "InferenceService", "inferenceservices")
DEPLOYMENT = Kind("apps/v1", "Deployment", "deployments")
STATEFUL_SET = Kind("apps/v1", "StatefulSet", "statefulsets")
SERVICE = Kind("v1", "Service", "services")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SERVICE_ACCOUNT = Kind("v1", "ServiceAccount", "serviceaccounts")
PERSISTENT_VOLUME_CLAIM = Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
POD_DISRUPTION_BUDGET = Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
NETWORK_POLICY = Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
POD_MONITOR = Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors")
POD = Kind("v1", "Pod", "pods")
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
EVENT = Kind("v1", "Event", "events")
LEASE = Kind("coordination.k8s.io/v1", "Lease", "leases")

CHILD_KINDS = (
    SERVICE_ACCOUNT,
    SERVICE,
    PERSISTENT_VOLUME_CLAIM,
    CONFIG_MAP,
    POD_DISRUPTION_BUDGET,
    NETWORK_POLICY,
    DEPLOYMENT,
    STATEFUL_SET,
)
"""What the operator applies for a service, in that order; claim and ConfigMap only if wanted.

Of Deployment and StatefulSet, either.
"""
OPTIONAL_KINDS = (POD_MONITOR,)
"""Applied, too, where the API server serves them: their definitions are other projects'."""
WATCHED_KINDS = (INFERENCE_SERVICE, *CHILD_KINDS, REPLICA_SET, POD)
"""Always; the optional ones beside them while they are served."""
_ALL_KINDS = (*WATCHED_KINDS, *OPTIONAL_KINDS)


def kind_of(manifest: Mapping[str, Any]) -> Kind:
    for kind in _ALL_KINDS:
        if kind.name == manifest["kind"] and kind.api_version == manifest["apiVersion"]:
            return kind
    raise ValueError(f"no known kind: {manifest['apiVersion']} {manifest['kind']}")
