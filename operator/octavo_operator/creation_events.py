"""Why a StatefulSet makes no pods: told by its Events alone, which are read while some are missing.

A Deployment says it in a condition. Events carry no label of ours, so they are not watched.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from octavo_operator import generations
from octavo_operator.cluster import Cluster
from octavo_operator.kinds import EVENT, STATEFUL_SET
from octavo_operator.snapshot import Snapshot

_REFUSED, _MADE = "FailedCreate", "SuccessfulCreate"
_PAUSE_S = 10.0


async def looked_at(
    cluster: Cluster, namespace: str, snapshot: Snapshot
) -> tuple[Snapshot, float | None]:
    """The snapshot with Events, and after how many seconds to look again; None for never.

    Raises ApiError.
    """
    found = generations.workload(snapshot)
    if found is None or not _lacks_pods(found):
        return snapshot, None
    selector = f"involvedObject.uid={found['metadata']['uid']}"
    listing = await cluster.list(EVENT, namespace, field_selector=selector)
    events = {**snapshot.events, found["metadata"]["name"]: listing.items}
    return replace(snapshot, events=events), _PAUSE_S


def failure(snapshot: Snapshot) -> str | None:
    """The API server's sentence where it refuses pods or claims; None where none are missing."""
    found = generations.workload(snapshot)
    if found is None:
        return None
    events = snapshot.events.get(found["metadata"]["name"], ())
    tries = [event for event in events if event["reason"] in (_REFUSED, _MADE)]
    last = max(tries, key=_moment, default=None)
    return str(last["message"]) if last is not None and last["reason"] == _REFUSED else None


def _lacks_pods(workload: Mapping[str, Any]) -> bool:
    has = workload.get("status", {}).get("replicas", 0)
    return (
        workload["kind"] == STATEFUL_SET.name
        and generations.is_observed(dict(workload))
        and has < workload["spec"]["replicas"]
    )


def _moment(event: Mapping[str, Any]) -> tuple[str, bool]:
    """Within one second, what went well counts as the later: a refusal is soon repeated."""
    at = event.get("lastTimestamp") or event.get("eventTime") or ""
    return str(at), event["reason"] == _MADE
