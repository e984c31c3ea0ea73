"""Which changes of conditions are worth an Event, and the Event itself. Pure.

Every condition begins as False, Accepted as unknown. An Event tells of a status that has changed,
and of a trouble that has become another one; a sentence that has changed alone is no transition.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from octavo_operator.conditions import timestamp
from octavo_operator.kinds import EVENT, FIELD_MANAGER, INFERENCE_SERVICE, Manifest

EventType = Literal["Normal", "Warning"]
_MESSAGE_LIMIT = 1024
"""The API server takes no longer ones."""


@dataclass(frozen=True)
class Transition:
    type: EventType
    reason: str
    message: str


def transitions(
    old: Iterable[Mapping[str, Any]], new: Iterable[Mapping[str, Any]]
) -> tuple[Transition, ...]:
    """One for each reason: conditions that moved together, for the same cause, tell it once."""
    before = {condition["type"]: condition for condition in old}
    told: dict[str, Transition] = {}
    for condition in new:
        if _has_moved(before.get(condition["type"]), condition):
            reason = condition["reason"]
            told.setdefault(reason, Transition(_type(condition), reason, condition["message"]))
    return tuple(told.values())


def event(service: Mapping[str, Any], transition: Transition, name: str, now: datetime) -> Manifest:
    """`service` is the object that the Event is about; `name` is the Event's own."""
    metadata = service["metadata"]
    moment = timestamp(now)
    return {
        "apiVersion": EVENT.api_version,
        "kind": EVENT.name,
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": INFERENCE_SERVICE.api_version,
            "kind": INFERENCE_SERVICE.name,
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": transition.type,
        "reason": transition.reason,
        "message": transition.message[:_MESSAGE_LIMIT],
        "source": {"component": FIELD_MANAGER},
        "reportingComponent": FIELD_MANAGER,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


def repetition(transition: Transition, count: int, now: datetime) -> Manifest:
    """A merge patch that makes an Event tell of its `count`th time."""
    return {
        "message": transition.message[:_MESSAGE_LIMIT],
        "lastTimestamp": timestamp(now),
        "count": count,
    }


def _has_moved(before: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    if before is None:
        return bool(condition["type"] == "Accepted" or condition["status"] == "True")
    has_turned: bool = before["status"] != condition["status"]
    has_another_reason: bool = before["reason"] != condition["reason"]
    is_trouble = condition["type"] == "Degraded" and condition["status"] == "True"
    return has_turned or (is_trouble and has_another_reason)


def _type(condition: Mapping[str, Any]) -> EventType:
    is_on = condition["status"] == "True"
    if condition["type"] == "Degraded":
        return "Warning" if is_on else "Normal"
    if condition["type"] == "Progressing":
        return "Normal"
    return "Normal" if is_on or condition["reason"] in _WANTED else "Warning"


_WANTED = frozenset({"Starting", "RollingOut", "Draining", "ScaledToZero", "ModelPending"})
"""Reasons for which a condition ceases to hold although nothing is wrong."""
