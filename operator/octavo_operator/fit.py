"""What the fetch step planned of a model's memory, read out of a pod's status. Pure."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.fetch_container import FETCH_CONTAINER_NAME
from octavo_operator.kinds import Manifest

_FIELDS = ("weightsBytes", "kvTokenBytes", "contextLen", "kvTokens", "maxModelLen")


def planned(pods: Iterable[Manifest]) -> Manifest | None:
    """The plan of the newest pod that has one; None while no fetch has told any."""
    newest_first = sorted(
        pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp")), reverse=True
    )
    for pod in newest_first:
        for status in pod.get("status", {}).get("initContainerStatuses", []):
            if status["name"] == FETCH_CONTAINER_NAME:
                plan = _plan(status)
                if plan is not None:
                    return plan
    return None


def _plan(status: Mapping[str, Any]) -> Manifest | None:
    ended = status.get("state", {}).get("terminated") or {}
    try:
        words = json.loads(ended.get("message", ""))
        fit = words["fit"]
        return {field: int(fit[field]) for field in _FIELDS if fit.get(field) is not None}
    except (ValueError, KeyError, TypeError, AttributeError):
        return None  # it has not ended well, or has nothing to tell of such a model
