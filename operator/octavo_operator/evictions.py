"""A pod that keeps a broken accelerator is evicted, so that its successor gets another one.

A container that restarts stays in its pod, and the pod keeps its accelerators, also one that the
node has ceased to offer since it is broken; only a new pod is given others. How often that happens
is bounded by the pods themselves: each has to fail anew, with the kubelet's pauses between.
"""

from collections.abc import Mapping
from typing import Any

import structlog

from octavo_operator import pod_causes
from octavo_operator.cluster import Cluster
from octavo_operator.errors import ApiRejected, ApiUnavailable
from octavo_operator.events import EventWriter
from octavo_operator.kinds import Manifest
from octavo_operator.metrics import Metrics
from octavo_operator.reasons import Reason
from octavo_operator.snapshot import Snapshot
from octavo_operator.transitions import Transition

_NUM_RESTARTS = 2
"""In its place; a fault that passes by is over by then."""
_AGAIN_S = 10.0


def faulty(snapshot: Snapshot) -> Manifest | None:
    """One at a time: the first pod that is down by a third GPU fault; None while another leaves."""
    if any(pod_causes.is_leaving(pod) for pod in snapshot.pods):
        return None
    return next((pod for pod in snapshot.pods if _is_down_for_good(pod)), None)


async def evict_faulty(
    cluster: Cluster,
    events: EventWriter,
    metrics: Metrics,
    service: Mapping[str, Any],
    snapshot: Snapshot,
) -> float | None:
    """Tells it by an Event; after how many seconds to try again, None for not at all."""
    pod = faulty(snapshot)
    if pod is None:
        return None
    metadata = pod["metadata"]
    name = metadata["name"]
    log = structlog.get_logger().bind(pod=name)
    try:
        was_there = await cluster.evict(metadata["namespace"], name, metadata["uid"])
    except (ApiRejected, ApiUnavailable) as error:
        log.warning("pod with a broken accelerator not evicted", error=str(error))
        return _AGAIN_S
    if was_there:
        log.info("evicted", cause=Reason.GPU_FAULT)
        metrics.evicted.inc()
        await events.tell(service, (_told(name),))
    return None


def _told(pod_name: str) -> Transition:
    message = (
        f"pod {pod_name} ended by a GPU fault after {_NUM_RESTARTS} restarts; it was evicted, "
        "so that its successor gets another accelerator"
    )
    return Transition("Warning", "PodEvicted", message)


def _is_down_for_good(pod: Manifest) -> bool:
    found = pod_causes.cause(pod)
    return (
        found is not None
        and found.reason is Reason.GPU_FAULT
        and any(
            status.get("restartCount", 0) >= _NUM_RESTARTS
            and "running" not in status.get("state", {})
            for status in pod["status"].get("containerStatuses", [])
        )
    )
