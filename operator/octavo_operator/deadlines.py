"""How long a pod may stay in each phase of its life, and which pods have overstayed. Pure.

The Deployment's own deadline only says that nothing came; this names the pod and what it waits for.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from octavo_operator import pod_causes
from octavo_operator.pod_causes import Cause, Pod
from octavo_operator.reasons import Reason

_LEAVING_MARGIN = timedelta(seconds=60)
"""After the grace period: what a healthy node needs to remove a pod."""


@dataclass(frozen=True)
class Limits:
    """Of one new replica, from its creation until it answers."""

    start: timedelta
    """Until its container runs: a node, volumes, the image."""
    load: timedelta
    """Until it answers: the model."""

    @property
    def total(self) -> timedelta:
        return self.start + self.load


def limits(progress_deadline_s: int) -> Limits:
    """A third of the time to start, the rest to load."""
    total = timedelta(seconds=progress_deadline_s)
    return Limits(start=total / 3, load=total - total / 3)


def overdue(pod: Pod, limits: Limits, now: datetime) -> Cause | None:
    """None for a pod that answers, or that is within its time."""
    end = _end(pod, limits)
    if end is None or now < end:
        return None
    name = pod["metadata"]["name"]
    if pod_causes.is_leaving(pod):
        gone_by = pod["metadata"]["deletionTimestamp"]
        sentence = f"should have gone by {gone_by}: its node or a finalizer holds it"
        return Cause(Reason.TERMINATION_OVERDUE, name, sentence)
    limit = limits.start if _running_since(pod) is None else limits.load
    phase = pod_causes.waiting_for(pod)
    sentence = f"{phase} for more than {limit.total_seconds():.0f} s"
    return Cause(Reason.PROGRESS_DEADLINE_EXCEEDED, name, sentence)


def next_in_s(pods: Iterable[Pod], limits: Limits, now: datetime) -> float | None:
    """Seconds until the first of them will have overstayed; None when none is on its way."""
    ends = [end for pod in pods if (end := _end(pod, limits)) is not None and end > now]
    return (min(ends) - now).total_seconds() if ends else None


def _end(pod: Pod, limits: Limits) -> datetime | None:
    metadata = pod["metadata"]
    if pod_causes.is_leaving(pod):
        return datetime.fromisoformat(metadata["deletionTimestamp"]) + _LEAVING_MARGIN
    if pod_causes.is_ready(pod) or pod.get("status", {}).get("phase") in ("Failed", "Succeeded"):
        return None
    running_since = _running_since(pod)
    if running_since is not None:
        return None if _has_started(pod) else running_since + limits.load
    created = metadata.get("creationTimestamp")
    return None if created is None else datetime.fromisoformat(created) + limits.start


def _running_since(pod: Pod) -> datetime | None:
    for status in pod_causes.containers(pod):
        running = status.get("state", {}).get("running")
        if running is not None and running.get("startedAt"):
            return datetime.fromisoformat(running["startedAt"])
    return None


def _has_started(pod: Pod) -> bool:
    """Once it has answered, it is its readiness that counts."""
    return any(status.get("started") for status in pod_causes.containers(pod))
