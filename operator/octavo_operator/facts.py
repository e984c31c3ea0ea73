"""The few facts that conditions are made from, taken out of a snapshot. Pure."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from octavo_operator import creation_events, deadlines, fit, generations, mount_causes, pod_causes
from octavo_operator.kinds import DEPLOYMENT, STATEFUL_SET, Manifest
from octavo_operator.pod_causes import Cause
from octavo_operator.reasons import Reason
from octavo_operator.snapshot import Snapshot


@dataclass(frozen=True)
class Problem:
    """Why the operator could not do what the spec asks; a whole sentence."""

    reason: Reason
    message: str


@dataclass(frozen=True)
class Rollout:
    """The own account of what keeps the pods."""

    kind: str = DEPLOYMENT.name
    """Or StatefulSet."""
    is_observed: bool = False
    """Whether its status tells of its newest generation."""
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    was_complete: bool = False
    """Whether all replicas of the newest template have been available at some moment."""
    deadline_message: str | None = None
    creation_failure: str | None = None
    """The API server's sentence where it refuses pods."""


@dataclass(frozen=True)
class Facts:
    generation: int
    wanted_replicas: int
    rollout: Rollout
    causes: tuple[Cause, ...] = ()
    """One for each pod in trouble, the most telling first."""
    fit: Manifest | None = None
    """What the model takes of memory, as the fetch step planned it."""
    is_model_open: bool = False
    """Whether some pod has got as far as to serve the model."""
    waiting: tuple[str, ...] = ()
    """One sentence for each pod that is on its way without trouble."""
    not_accepted: Problem | None = None
    not_applied: Problem | None = None
    predecessors: tuple[str, ...] = ()
    """Kinds and names of children that are still being removed."""
    blocked: str | None = None
    """Why a surge is impossible."""
    leaving: tuple[str, ...] = ()
    """Names of pods that finish what runs on them."""
    overstaying: tuple[Cause, ...] = ()
    """Pods that should have gone."""


def rollout(workload: Manifest | None) -> Rollout:
    if workload is None:
        return Rollout()
    status: dict[str, Any] = workload.get("status", {})
    progressing = _condition(status, "Progressing")
    failure = _condition(status, "ReplicaFailure")
    timed_out = progressing.get("reason") == "ProgressDeadlineExceeded"
    return Rollout(
        kind=workload.get("kind", DEPLOYMENT.name),
        is_observed=generations.is_observed(workload),
        replicas=status.get("replicas", 0),
        updated_replicas=status.get("updatedReplicas", 0),
        ready_replicas=status.get("readyReplicas", 0),
        was_complete=progressing.get("reason") == "NewReplicaSetAvailable",
        deadline_message=progressing.get("message", "") if timed_out else None,
        creation_failure=failure.get("message", "") if failure.get("status") == "True" else None,
    )


def gather(
    generation: int,
    wanted_replicas: int,
    snapshot: Snapshot,
    *,
    now: datetime,
    limits: deadlines.Limits,
    blocked: str | None = None,
    not_accepted: Problem | None = None,
    not_applied: Problem | None = None,
    predecessors: tuple[str, ...] = (),
) -> Facts:
    """Pods of an earlier template count as replicas; what ails them is another generation's."""
    pods = generations.newest_pods(snapshot)
    account = rollout(generations.workload(snapshot))
    if account.kind == STATEFUL_SET.name:
        account = _with_what_a_stateful_set_leaves_out(account, snapshot, wanted_replicas)
    causes = [cause for pod in pods if (cause := _cause(pod, snapshot, limits, now)) is not None]
    if account.ready_replicas >= wanted_replicas:
        # An evicted pod stays as a record after its replacement answers.
        causes = [cause for cause in causes if cause.reason is not Reason.POD_FAILED]
    leaving = [pod for pod in snapshot.pods if pod_causes.is_leaving(pod)]
    in_trouble = {cause.pod for cause in causes}
    waiting = tuple(
        f"pod {pod['metadata']['name']} {pod_causes.waiting_for(pod)}"
        for pod in pods
        if not pod_causes.is_ready(pod)
        and not pod_causes.is_leaving(pod)
        and pod["metadata"]["name"] not in in_trouble
    )
    return Facts(
        generation=generation,
        wanted_replicas=wanted_replicas,
        rollout=account,
        causes=tuple(sorted(causes, key=_telling)),
        fit=fit.planned(snapshot.pods),
        is_model_open=any(pod_causes.is_ready(pod) for pod in pods),
        waiting=waiting,
        not_accepted=not_accepted,
        not_applied=not_applied,
        predecessors=predecessors,
        blocked=blocked,
        leaving=tuple(pod["metadata"]["name"] for pod in leaving),
        overstaying=tuple(
            cause for pod in leaving if (cause := deadlines.overdue(pod, limits, now)) is not None
        ),
    )


def _with_what_a_stateful_set_leaves_out(
    account: Rollout, snapshot: Snapshot, wanted_replicas: int
) -> Rollout:
    """It keeps no conditions: pods tell whether they have answered, and Events what is refused."""
    started = [pod for pod in generations.newest_pods(snapshot) if pod_causes.has_answered(pod)]
    return replace(
        account,
        was_complete=len(started) >= wanted_replicas,
        creation_failure=creation_events.failure(snapshot),
    )


def _cause(
    pod: Manifest, snapshot: Snapshot, limits: deadlines.Limits, now: datetime
) -> Cause | None:
    if pod_causes.is_leaving(pod):
        return None
    events = snapshot.events.get(pod["metadata"]["name"], ())
    told = pod_causes.cause(pod) or mount_causes.cause(pod, events)
    return told or deadlines.overdue(pod, limits, now)


def _telling(cause: Cause) -> tuple[int, str]:
    return _TELLING_ORDER[cause.reason], cause.pod


# The engine's own words tell more than a crash, and a crash more than a pod that waits for a node.
_TELLING_ORDER = {
    reason: rank
    for rank, reason in enumerate(
        (
            Reason.DOES_NOT_FIT,
            Reason.CHECKSUM_MISMATCH,
            Reason.DOWNLOAD_FAILED,
            Reason.MODEL_UNREADABLE,
            Reason.INVALID_CONFIGURATION,
            Reason.OUT_OF_MEMORY,
            Reason.GPU_FAULT,
            Reason.ENGINE_STALLED,
            Reason.ENGINE_FAILED,
            Reason.OOM_KILLED,
            Reason.CRASH_LOOP,
            Reason.MODEL_NOT_FOUND,
            Reason.SECRET_MISSING,
            Reason.CONTAINER_CANNOT_START,
            Reason.IMAGE_PULL,
            Reason.VOLUME_MOUNT,
            Reason.PROGRESS_DEADLINE_EXCEEDED,
            Reason.UNSCHEDULABLE,
            Reason.NOT_ANSWERING,
            Reason.POD_FAILED,
        )
    )
}


def _condition(status: dict[str, Any], condition_type: str) -> dict[str, Any]:
    for condition in status.get("conditions", []):
        if condition["type"] == condition_type:
            found: dict[str, Any] = condition
            return found
    return {}
