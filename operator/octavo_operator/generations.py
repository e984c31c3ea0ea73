"""Which pods are of the newest template, and which of an earlier one. Pure.

A Deployment makes a ReplicaSet for each template, and both count the templates by one annotation;
a StatefulSet tells the name of its newest template, which its pods bear as a label.
"""

from octavo_operator.kinds import DEPLOYMENT, STATEFUL_SET, Manifest
from octavo_operator.snapshot import Snapshot

HASH_LABEL = "pod-template-hash"
_STATEFUL_LABEL = "controller-revision-hash"
_REVISION = "deployment.kubernetes.io/revision"


def workload(snapshot: Snapshot) -> Manifest | None:
    """What keeps the pods: the Deployment or the StatefulSet, whichever there is."""
    return snapshot.child(DEPLOYMENT) or snapshot.child(STATEFUL_SET)


def newest_hash(snapshot: Snapshot) -> str | None:
    """The label by which pods of the newest template are known; None before there is one.

    None also while its controller has not yet seen its newest template: what pods there are then
    are of an earlier one.
    """
    found = workload(snapshot)
    if found is None or not is_observed(found):
        return None
    if found.get("kind") == STATEFUL_SET.name:
        update: str | None = found["status"].get("updateRevision")
        return update
    revision = _revision(found)
    for replica_set in snapshot.replica_sets:
        if revision is not None and _revision(replica_set) == revision:
            return hash_of(replica_set)
    return None


def is_observed(workload: Manifest) -> bool:
    """Whether its status tells of its newest generation."""
    observed: int = workload.get("status", {}).get("observedGeneration", 0)
    return observed >= int(workload["metadata"]["generation"])


def newest_pods(snapshot: Snapshot) -> tuple[Manifest, ...]:
    newest = newest_hash(snapshot)
    return tuple(pod for pod in snapshot.pods if newest is not None and hash_of(pod) == newest)


def earlier_pods(snapshot: Snapshot) -> tuple[Manifest, ...]:
    newest = newest_pods(snapshot)
    return tuple(pod for pod in snapshot.pods if pod not in newest)


def is_settled(snapshot: Snapshot) -> bool:
    """Whether all pods are of the newest template, and no other will be made."""
    newest, found = newest_hash(snapshot), workload(snapshot)
    if newest is None or found is None or earlier_pods(snapshot):
        return False
    if found.get("kind") == STATEFUL_SET.name:  # one that dies meanwhile is made anew as it was
        return bool(found["status"].get("currentRevision") == newest)
    return not any(
        one["spec"]["replicas"] for one in snapshot.replica_sets if hash_of(one) != newest
    )


def hash_of(body: Manifest) -> str | None:
    """Of a pod or a ReplicaSet."""
    labels = body["metadata"].get("labels", {})
    found: str | None = labels.get(HASH_LABEL) or labels.get(_STATEFUL_LABEL)
    return found


def _revision(body: Manifest) -> str | None:
    found: str | None = body["metadata"].get("annotations", {}).get(_REVISION)
    return found
