"""Children that no setting asks for any more, once no pod needs them. Pure."""

from collections.abc import Iterable

from octavo_operator import generations
from octavo_operator.kinds import POD_MONITOR, Manifest
from octavo_operator.snapshot import Snapshot, controller_uid


def obsolete(
    wanted: Iterable[Manifest], observed: Snapshot, owner_uid: str
) -> tuple[Manifest, ...]:
    """Of this service alone, and not yet being deleted."""
    asked_for = {(manifest["kind"], manifest["metadata"]["name"]) for manifest in wanted}
    monitor = observed.child(POD_MONITOR)
    candidates = [] if monitor is None else [monitor]
    if generations.is_settled(observed):
        in_use = _mounted(observed)
        candidates += [one for one in observed.config_maps if _name(one) not in in_use]
    return tuple(
        one
        for one in candidates
        if (one["kind"], _name(one)) not in asked_for
        and controller_uid(one) == owner_uid
        and "deletionTimestamp" not in one["metadata"]
    )


def _mounted(observed: Snapshot) -> set[str]:
    """Names of the ConfigMaps that pods of the newest template, the only ones there are, mount."""
    workload = generations.workload(observed)
    pod = {} if workload is None else workload["spec"]["template"]["spec"]
    return {
        volume["configMap"]["name"] for volume in pod.get("volumes", []) if "configMap" in volume
    }


def _name(child: Manifest) -> str:
    return str(child["metadata"]["name"])
