"""What should exist for an InferenceService: ServiceAccount, Service, Deployment. Pure.

Manifests hold exactly the fields that the operator owns, so that foreign fields stay untouched by
server-side apply.
"""

import hashlib
import json

from octavo_operator.api import InferenceService
from octavo_operator.config import EngineDefaults
from octavo_operator.kinds import (
    APPLIED_ANNOTATION,
    DEPLOYMENT,
    FIELD_MANAGER,
    INFERENCE_SERVICE,
    MANAGED_BY_LABEL,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_LABEL,
    Kind,
    Manifest,
)
from octavo_operator.pod_template import START_SECONDS, pod_template

SERVICE_PORT = 80
_SCHEDULE_AND_PULL_SECONDS = 900


def wanted(
    service: InferenceService, replicas: int, defaults: EngineDefaults
) -> tuple[Manifest, ...]:
    """The manifests in the order in which they are applied, each with its digest."""
    return tuple(
        _with_digest(manifest)
        for manifest in (
            _service_account(service),
            _service(service),
            _deployment(service, replicas, defaults),
        )
    )


def label_selector(name: str) -> str:
    return f"{SERVICE_LABEL}={name}"


def url(namespace: str, name: str) -> str:
    """Base URL for OpenAI clients inside the cluster; the port is the default one of http."""
    return f"http://{name}.{namespace}.svc/v1"


def _labels(service: InferenceService) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "octavo-engine",
        "app.kubernetes.io/instance": service.name,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        SERVICE_LABEL: service.name,
    }


def _manifest(service: InferenceService, kind: Kind) -> Manifest:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": service.name,
            "namespace": service.namespace,
            "labels": _labels(service),
            "ownerReferences": [
                {
                    "apiVersion": INFERENCE_SERVICE.api_version,
                    "kind": INFERENCE_SERVICE.name,
                    "name": service.name,
                    "uid": service.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
    }


def _service_account(service: InferenceService) -> Manifest:
    # The engine never talks to the API server.
    return {**_manifest(service, SERVICE_ACCOUNT), "automountServiceAccountToken": False}


def _service(service: InferenceService) -> Manifest:
    return {
        **_manifest(service, SERVICE),
        "spec": {
            "type": "ClusterIP",
            "selector": {SERVICE_LABEL: service.name},
            "ports": [
                {"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}
            ],
        },
    }


def _deployment(service: InferenceService, replicas: int, defaults: EngineDefaults) -> Manifest:
    return {
        **_manifest(service, DEPLOYMENT),
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {SERVICE_LABEL: service.name}},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": START_SECONDS + _SCHEDULE_AND_PULL_SECONDS,
            "template": pod_template(service, _labels(service), defaults),
        },
    }


def _with_digest(manifest: Manifest) -> Manifest:
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    metadata = {**manifest["metadata"], "annotations": {APPLIED_ANNOTATION: digest}}
    return {**manifest, "metadata": metadata}
