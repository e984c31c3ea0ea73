"""What keeps a service's pods: a Deployment, or a StatefulSet where each has a claim of its own.

Pure. A StatefulSet gives every replica its old claim back, so it cannot start a new replica before
the one that it replaces has left: there is no surge.
"""

from octavo_operator.api import InferenceService, NewClaim
from octavo_operator.child import child, selector
from octavo_operator.kinds import DEPLOYMENT, STATEFUL_SET, Manifest
from octavo_operator.model_source import VOLUME_NAME

_REVISIONS = 3
"""Earlier templates that are kept, for `kubectl rollout undo`."""


def deployment(service: InferenceService, replicas: int, template: Manifest) -> Manifest:
    return {
        **child(service, DEPLOYMENT),
        "spec": {
            "replicas": replicas,
            "selector": selector(service),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _steps(service)},
            "revisionHistoryLimit": _REVISIONS,
            "progressDeadlineSeconds": service.spec.rollout.progress_deadline_seconds,
            "template": template,
        },
    }


def stateful_set(
    service: InferenceService, claim: NewClaim, replicas: int, template: Manifest
) -> Manifest:
    return {
        **child(service, STATEFUL_SET),
        "spec": {
            "replicas": replicas,
            "selector": selector(service),
            "serviceName": service.name,
            # Replicas need not wait for one another, and one that is broken must not hold up the
            # return to what worked.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate"},
            "revisionHistoryLimit": _REVISIONS,
            "persistentVolumeClaimRetentionPolicy": {
                "whenDeleted": "Delete",
                "whenScaled": "Retain",  # a replica that comes back finds its files
            },
            "template": template,
            "volumeClaimTemplates": [
                {
                    "apiVersion": "v1",
                    "kind": "PersistentVolumeClaim",
                    "metadata": {"name": VOLUME_NAME},
                    "spec": claim_spec(claim),
                }
            ],
        },
    }


def claim_spec(claim: NewClaim) -> Manifest:
    """Of a PersistentVolumeClaim."""
    spec: Manifest = {
        "accessModes": [claim.access_mode],
        "resources": {"requests": {"storage": str(claim.size)}},
    }
    if claim.storage_class_name is not None:
        spec["storageClassName"] = claim.storage_class_name
    return spec


def _steps(service: InferenceService) -> Manifest:
    rollout = service.spec.rollout
    if rollout.strategy == "recreate":
        # One by one: taking all at once, as the Deployment's own Recreate does, would cut more.
        return {"maxUnavailable": 1, "maxSurge": 0}
    return {"maxUnavailable": 0, "maxSurge": rollout.max_surge or 1}
