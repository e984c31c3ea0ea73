"""Which pods are of the newest template, and which of an earlier one. Pure.

A Deployment makes a ReplicaSet for each template, and both count the templates by one annotation.
"""

from octavo_operator.kinds import DEPLOYMENT, Manifest
from octavo_operator.snapshot import Snapshot

HASH_LABEL = "pod-template-hash"
_REVISION = "deployment.kubernetes.io/revision"


def newest_hash(snapshot: Snapshot) -> str | None:
    """The label by which pods of the newest template are known; None before there is one.

    None also while the Deployment's controller has not yet seen its newest template: what pods
    there are then are of an earlier one.
    """
    deployment = snapshot.child(DEPLOYMENT)
    if deployment is None or not is_observed(deployment):
        return None
    revision = _revision(deployment)
    for replica_set in snapshot.replica_sets:
        if revision is not None and _revision(replica_set) == revision:
            return hash_of(replica_set)
    return None


def is_observed(deployment: Manifest) -> bool:
    """Whether a Deployment's status tells of its newest generation."""
    observed: int = deployment.get("status", {}).get("observedGeneration", 0)
    return observed >= int(deployment["metadata"]["generation"])


def newest_pods(snapshot: Snapshot) -> tuple[Manifest, ...]:
    newest = newest_hash(snapshot)
    return tuple(pod for pod in snapshot.pods if newest is not None and hash_of(pod) == newest)


def earlier_pods(snapshot: Snapshot) -> tuple[Manifest, ...]:
    newest = newest_pods(snapshot)
    return tuple(pod for pod in snapshot.pods if pod not in newest)


def hash_of(body: Manifest) -> str | None:
    """Of a pod or a ReplicaSet."""
    found: str | None = body["metadata"].get("labels", {}).get(HASH_LABEL)
    return found


def _revision(body: Manifest) -> str | None:
    found: str | None = body["metadata"].get("annotations", {}).get(_REVISION)
    return found
