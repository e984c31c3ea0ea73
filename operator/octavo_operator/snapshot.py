"""What was seen of one service at one moment, in the objects' own form.

Frozen; filled by cache.py and reconcile.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from octavo_operator.kinds import CONFIG_MAP, Kind, Manifest, kind_of


@dataclass(frozen=True)
class Snapshot:
    children: Mapping[str, Manifest] = field(default_factory=dict)
    """Name of the kind -> the child, of the kinds of which there is one."""
    pods: tuple[Manifest, ...] = ()
    """The service's pods, in the order of their names."""
    replica_sets: tuple[Manifest, ...] = ()
    """The Deployment's ReplicaSets, in the order of their names; of their spec only replicas."""
    events: Mapping[str, tuple[Manifest, ...]] = field(default_factory=dict)
    """Name of a pod that waits for its volumes -> its Events, where they were looked at."""
    config_maps: tuple[Manifest, ...] = ()
    """One for each content that some pod may still read, in the order of their names."""

    def child(self, kind: Kind) -> Manifest | None:
        return self.children.get(kind.name)

    def named(self, kind: Kind, name: str) -> Manifest | None:
        """The child of a kind of which there may be several."""
        if kind != CONFIG_MAP:
            return self.child(kind)
        return next((one for one in self.config_maps if one["metadata"]["name"] == name), None)

    def since(self, moment: str) -> "Snapshot":
        """Without pods and ReplicaSets of before the service was made, as its predecessor's are."""

        def own(objects: tuple[Manifest, ...]) -> tuple[Manifest, ...]:
            return tuple(
                one for one in objects if one["metadata"].get("creationTimestamp", moment) >= moment
            )

        return replace(self, pods=own(self.pods), replica_sets=own(self.replica_sets))

    def with_child(self, child: Manifest) -> "Snapshot":
        kind, name = kind_of(child), child["metadata"]["name"]
        if kind == CONFIG_MAP:
            others = (one for one in self.config_maps if one["metadata"]["name"] != name)
            return replace(self, config_maps=(*others, child))
        return replace(self, children={**self.children, kind.name: child})


def controller_uid(manifest: Manifest) -> str | None:
    """The uid of the object that controls this one."""
    for owner in manifest["metadata"].get("ownerReferences", []):
        if owner.get("controller"):
            return str(owner["uid"])
    return None
