"""Wanted against observed: what to apply, each item with its reason. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from octavo_operator import merge
from octavo_operator.kinds import APPLIED_ANNOTATION, Manifest, kind_of
from octavo_operator.snapshot import Snapshot, controller_uid

Cause = Literal["missing", "changed", "drifted"]


@dataclass(frozen=True)
class Item:
    manifest: Manifest
    cause: Cause
    detail: str
    """For a drifted object: the first field that differs, wanted and found."""


@dataclass(frozen=True)
class Plan:
    items: tuple[Item, ...]
    foreign: tuple[Manifest, ...] = ()
    """Objects that bear a child's name and belong to somebody else."""
    leaving: tuple[Manifest, ...] = ()
    """Children of this service, or of one before it with its name, that are being deleted."""


def diff(wanted: Iterable[Manifest], observed: Snapshot, owner_uid: str) -> Plan:
    """Nothing is planned while a name is taken or a predecessor's child is still there."""
    items: list[Item] = []
    foreign: list[Manifest] = []
    leaving: list[Manifest] = []
    for manifest in wanted:
        found = observed.named(kind_of(manifest), manifest["metadata"]["name"])
        if found is None:
            items.append(Item(manifest, "missing", ""))
        elif found["metadata"].get("deletionTimestamp") or _predecessors(manifest, found):
            leaving.append(found)
        elif controller_uid(found) != owner_uid and not _ours(manifest, found):
            foreign.append(found)
        elif item := _compare(manifest, found):
            items.append(item)
    if foreign or leaving:
        return Plan((), tuple(foreign), tuple(leaving))
    return Plan(tuple(items))


def _ours(manifest: Manifest, found: Manifest) -> bool:
    """Whether we applied it and it has lost its owner, as by `kubectl delete --cascade=orphan`."""
    has_our_mark = APPLIED_ANNOTATION in found["metadata"].get("annotations", {})
    return has_our_mark and controller_uid(found) is None


def _predecessors(manifest: Manifest, found: Manifest) -> bool:
    """Whether it is a child of a deleted service of the same name, soon removed with its owner."""
    own = manifest["metadata"]["ownerReferences"][0]
    return any(
        owner["kind"] == own["kind"]
        and owner["apiVersion"] == own["apiVersion"]
        and owner["name"] == own["name"]
        and owner["uid"] != own["uid"]
        for owner in found["metadata"].get("ownerReferences", [])
    )


def _compare(manifest: Manifest, found: Manifest) -> Item | None:
    applied = found["metadata"].get("annotations", {}).get(APPLIED_ANNOTATION)
    if applied != manifest["metadata"]["annotations"][APPLIED_ANNOTATION]:
        return Item(manifest, "changed", "")
    difference = merge.first_difference(manifest, found)
    return None if difference is None else Item(manifest, "drifted", difference.lstrip("."))
