"""The one setter of conditions. Pure; knows nothing of what they mean."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from octavo_operator.kinds import Manifest
from octavo_operator.reasons import Reason

ConditionType = Literal["Accepted", "ModelReady", "Available", "Progressing", "Degraded", "Ready"]
_MESSAGE_LIMIT = 1024


@dataclass(frozen=True)
class Condition:
    type: ConditionType
    status: bool
    reason: Reason
    message: str


def merged(
    old: Iterable[Mapping[str, Any]],
    new: Iterable[Condition],
    generation: int,
    now: datetime,
) -> list[Manifest]:
    """The conditions as they go into the status.

    - A new type is inserted with the time of now.
    - Where status is as before, the transition time stays, whatever reason and message say.
    - Where status has changed, the transition time is now.
    Old types that `new` does not give are gone.
    """
    before = {condition["type"]: condition for condition in old}
    result: list[Manifest] = []
    for condition in new:
        status = "True" if condition.status else "False"
        previous = before.get(condition.type)
        unmoved = previous is not None and previous["status"] == status
        since = previous["lastTransitionTime"] if previous and unmoved else timestamp(now)
        result.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason.value,
                "message": _shortened(condition.message),
                "observedGeneration": generation,
                "lastTransitionTime": since,
            }
        )
    return result


def timestamp(moment: datetime) -> str:
    """RFC 3339 in whole seconds, as the API server keeps it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shortened(message: str) -> str:
    return message if len(message) <= _MESSAGE_LIMIT else message[: _MESSAGE_LIMIT - 1] + "…"
