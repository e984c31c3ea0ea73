"""Why a pod's volumes do not come: from the kubelet's Events to one reason and one sentence. Pure.

A pod whose volumes fail waits without a word in its status; only an Event tells the cause. Holds
which pods that concerns, and how long a look at their Events is worth waiting for.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from octavo_operator.model_source import VOLUME_NAME
from octavo_operator.pod_causes import Cause, Pod, is_leaving
from octavo_operator.reasons import Reason

Event = Mapping[str, Any]

_REASONS = frozenset({"FailedMount", "FailedAttachVolume", "FailedMapVolume"})
_SUMMARY = "Unable to attach or mount volumes"
"""Begins the event that only repeats which volumes are missing."""
_FIRST_LOOK_S = 3.0
"""A healthy pod has its volumes by then, so that it costs no look."""
_LONGEST_PAUSE_S = 60.0
_MISSING_SECRET = re.compile(r'secret "([^"]+)" not found')
_MISSING_KEYS = re.compile(r"references non-existent secret key: (\S+)")
_HOST_PATH = re.compile(r"hostPath type check failed: (.+)$")
_VOLUME = re.compile(r'for volume "([^"]+)"')


def awaits_volumes(pod: Pod) -> bool:
    """On a node, with no container begun and no network: what comes before those is volumes."""
    if is_leaving(pod) or pod.get("status", {}).get("phase") not in (None, "Pending"):
        return False
    conditions = {c["type"]: c["status"] for c in pod["status"].get("conditions", [])}
    return (
        conditions.get("PodScheduled") == "True"
        and conditions.get("PodReadyToStartContainers") == "False"
    )


def look_in_s(pod: Pod, now: datetime) -> float:
    """Seconds until a look at the pod's Events is worth its call; 0 for now."""
    return max(0.0, _FIRST_LOOK_S - _seconds_on_node(pod, now))


def pause_s(pod: Pod, now: datetime) -> float:
    """Seconds until the next look: the longer it has waited, the less it is worth."""
    return min(_LONGEST_PAUSE_S, max(_FIRST_LOOK_S, _seconds_on_node(pod, now) / 2))


def cause(pod: Pod, events: Iterable[Event]) -> Cause | None:
    """`events` are those of the pod; the newest that names a cause counts."""
    told = [
        event
        for event in events
        if event.get("reason") in _REASONS and not event.get("message", "").startswith(_SUMMARY)
    ]
    if not told:
        return None
    newest = max(told, key=_last_seen)
    reason, sentence = _finding(" ".join(newest["message"].split()))
    return Cause(reason, pod["metadata"]["name"], sentence)


def _finding(message: str) -> tuple[Reason, str]:
    volume = _VOLUME.search(message)
    name = volume[1] if volume else "?"
    if secret := _MISSING_SECRET.search(message):
        return Reason.SECRET_MISSING, f"waits for Secret {secret[1]!r}, which does not exist"
    if key := _MISSING_KEYS.search(message):
        return Reason.SECRET_MISSING, f"waits for a Secret that lacks the key {key[1]!r}: {message}"
    if name == VOLUME_NAME and (path := _HOST_PATH.search(message)):
        return Reason.MODEL_NOT_FOUND, f"finds no model on its node: {path[1]}"
    return Reason.VOLUME_MOUNT, f"cannot mount volume {name!r}: {message}"


def _last_seen(event: Event) -> str:
    series = event.get("series") or {}
    times = (
        series.get("lastObservedTime"),
        event.get("lastTimestamp"),
        event.get("eventTime"),
        event["metadata"].get("creationTimestamp"),
    )
    return max(str(time) for time in times if time)


def _seconds_on_node(pod: Pod, now: datetime) -> float:
    for condition in pod["status"].get("conditions", []):
        if condition["type"] == "PodScheduled" and condition.get("lastTransitionTime"):
            since = datetime.fromisoformat(condition["lastTransitionTime"]).astimezone(UTC)
            return max(0.0, (now - since).total_seconds())
    return 0.0
