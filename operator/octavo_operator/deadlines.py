"""How long a pod may stay in each phase of its life, and which pods have overstayed. Pure.

The Deployment's own deadline only says that nothing came; this names the pod and what it waits for.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from octavo_operator import pod_causes
from octavo_operator.pod_causes import Cause, Pod
from octavo_operator.reasons import Reason

_LEAVING_MARGIN = timedelta(seconds=60)
"""After the grace period: what a healthy node needs to remove a pod."""


@dataclass(frozen=True)
class Limits:
    """Of one new replica, from its creation until it answers."""

    start: timedelta
    """Until a container runs: a node, volumes, the image."""
    fetch: timedelta
    """Until the model's files are there, where they are fetched."""
    load: timedelta
    """Until it answers: the model."""


def limits(progress_deadline_s: int) -> Limits:
    """A third of the time to start, the rest to fetch or to load.

    A replica that does both in turn is held to all of the time by its Deployment.
    """
    total = timedelta(seconds=progress_deadline_s)
    rest = total - total / 3
    return Limits(start=total / 3, fetch=rest, load=rest)


def overdue(pod: Pod, limits: Limits, now: datetime) -> Cause | None:
    """None for a pod that answers, or that is within its time."""
    span = _span(pod, limits)
    if span is None or now < span.end:
        return None
    name = pod["metadata"]["name"]
    if pod_causes.is_leaving(pod):
        gone_by = pod["metadata"]["deletionTimestamp"]
        sentence = f"should have gone by {gone_by}: its node or a finalizer holds it"
        return Cause(Reason.TERMINATION_OVERDUE, name, sentence)
    phase = pod_causes.waiting_for(pod)
    sentence = f"{phase} for more than {span.limit.total_seconds():.0f} s"
    return Cause(Reason.PROGRESS_DEADLINE_EXCEEDED, name, sentence)


def is_starting(pod: Pod, limits: Limits, now: datetime) -> bool:
    """Whether it is on a node, on its way without trouble, and within its time."""
    if not pod.get("spec", {}).get("nodeName") or pod_causes.is_leaving(pod):
        return False
    span = _span(pod, limits)
    return span is not None and now < span.end and pod_causes.cause(pod) is None


def next_in_s(pods: Iterable[Pod], limits: Limits, now: datetime) -> float | None:
    """Seconds until the first of them will have overstayed; None when none is on its way."""
    spans = [_span(pod, limits) for pod in pods]
    ends = [span.end for span in spans if span is not None and span.end > now]
    return (min(ends) - now).total_seconds() if ends else None


class _Span(NamedTuple):
    """The phase that a pod is in."""

    since: datetime
    limit: timedelta

    @property
    def end(self) -> datetime:
        return self.since + self.limit


def _span(pod: Pod, limits: Limits) -> _Span | None:
    """None for a pod that answers, has answered, or is over."""
    metadata, status = pod["metadata"], pod.get("status", {})
    if pod_causes.is_leaving(pod):
        return _Span(datetime.fromisoformat(metadata["deletionTimestamp"]), _LEAVING_MARGIN)
    if pod_causes.is_ready(pod) or status.get("phase") in ("Failed", "Succeeded"):
        return None
    if pod_causes.has_answered(pod):
        return None  # once it has answered, it is its readiness that counts
    fetching = status.get("initContainerStatuses", [])
    for containers, state, moment, limit in (
        (status.get("containerStatuses", []), "running", "startedAt", limits.load),
        (fetching, "running", "startedAt", limits.fetch),
        (fetching, "terminated", "finishedAt", limits.start),
    ):
        since = _last(containers, state, moment)
        if since is not None:
            return _Span(since, limit)
    made = metadata.get("creationTimestamp")
    return None if made is None else _Span(datetime.fromisoformat(made), limits.start)


def _last(containers: Iterable[Mapping[str, Any]], state: str, moment: str) -> datetime | None:
    """When the last of the containers that are in the state came to it."""
    found = [container.get("state", {}).get(state, {}).get(moment) for container in containers]
    return max((datetime.fromisoformat(each) for each in found if each), default=None)
