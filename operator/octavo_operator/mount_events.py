"""Looks at the Events of pods that wait for their volumes: on demand, never by a watch.

Events carry no label of ours, so a watch would bring every Event of the cluster.
"""

from dataclasses import replace
from datetime import datetime

from octavo_operator import mount_causes
from octavo_operator.cluster import Cluster
from octavo_operator.kinds import EVENT, Manifest
from octavo_operator.snapshot import Snapshot


async def looked_at(
    cluster: Cluster, namespace: str, snapshot: Snapshot, now: datetime
) -> tuple[Snapshot, float | None]:
    """The snapshot with Events, and after how many seconds to look again; None for never.

    Raises ApiError.
    """
    events: dict[str, tuple[Manifest, ...]] = {}
    again_s: list[float] = []
    for pod in filter(mount_causes.awaits_volumes, snapshot.pods):
        look_in_s = mount_causes.look_in_s(pod, now)
        if look_in_s > 0:
            again_s.append(look_in_s)
            continue
        metadata = pod["metadata"]
        selector = f"involvedObject.uid={metadata['uid']}"
        listing = await cluster.list(EVENT, namespace, field_selector=selector)
        events[metadata["name"]] = listing.items
        again_s.append(mount_causes.pause_s(pod, now))
    return replace(snapshot, events=events), min(again_s, default=None)
