"""What all children of a service have in common: names, labels, owner. Pure."""

import hashlib
import json
from typing import Any

from octavo_operator.api import InferenceService
from octavo_operator.kinds import (
    FIELD_MANAGER,
    INFERENCE_SERVICE,
    MANAGED_BY_LABEL,
    SERVICE_LABEL,
    Kind,
    Manifest,
)


def labels(service: InferenceService) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "octavo-engine",
        "app.kubernetes.io/instance": service.name,
        MANAGED_BY_LABEL: FIELD_MANAGER,
        SERVICE_LABEL: service.name,
    }


def selector(service: InferenceService) -> Manifest:
    """Selects the service's pods."""
    return {"matchLabels": {SERVICE_LABEL: service.name}}


def digest(value: Any) -> str:
    """The same for the same JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def child(service: InferenceService, kind: Kind) -> Manifest:
    """A child of the kind without its spec: there is one of each kind, named like its service."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "metadata": {
            "name": service.name,
            "namespace": service.namespace,
            "labels": labels(service),
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
