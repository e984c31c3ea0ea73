"""The objects last seen, fed by watch events, by full listings and by answers to our own writes.

Newer always wins, whatever the order of arrival. Holds no decision and does no I/O.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from octavo_operator.kinds import (
    CONFIG_MAP,
    INFERENCE_SERVICE,
    POD,
    REPLICA_SET,
    SERVICE_LABEL,
    Kind,
    Manifest,
)
from octavo_operator.snapshot import Snapshot

ServiceKey = tuple[str, str]
"""Namespace and name of an InferenceService."""
_ObjectKey = tuple[str, str]
"""Name of the kind, name of the object."""
_BY_LABEL = (POD.name, REPLICA_SET.name, CONFIG_MAP.name)
"""Kinds whose objects bear names of their own."""


class ObjectCache:
    def __init__(self) -> None:
        self._by_service: defaultdict[ServiceKey, dict[_ObjectKey, Manifest]] = defaultdict(dict)
        self._deleted: dict[tuple[ServiceKey, _ObjectKey], int] = {}
        """Version of the deletion: a listing or an answer from before it may come after it."""

    def put(self, kind: Kind, body: Manifest) -> ServiceKey | None:
        """The service that the object belongs to; None when it is not newer than what is known."""
        key = service_key(kind, body)
        if key is None:
            return None
        object_key = _object_key(kind, body)
        if _version(body) <= self._deleted.get((key, object_key), 0):
            return None
        known = self._by_service[key].get(object_key)
        if known is not None and _is_older_or_same(body, known):
            return None
        self._by_service[key][object_key] = _slim(kind, body)
        return key

    def drop(self, kind: Kind, body: Manifest) -> ServiceKey | None:
        """`body` is the object as its deletion event shows it."""
        key = service_key(kind, body)
        if key is None:
            return None
        object_key = _object_key(kind, body)
        self._deleted[key, object_key] = _version(body)
        known = self._by_service.get(key, {}).get(object_key)
        if known is not None and _is_older_or_same(known, body):
            self._forget(key, object_key)
        return key

    def replace_all(
        self, kind: Kind, namespace: str | None, bodies: Iterable[Manifest], version: str
    ) -> None:
        """Take a full listing as the truth of its `version`; what is newer than that stays."""
        listed: set[tuple[ServiceKey, _ObjectKey]] = set()
        for body in bodies:
            key = service_key(kind, body)
            if key is not None:
                listed.add((key, _object_key(kind, body)))
                self.put(kind, body)
        for key in list(self._by_service):
            if namespace is not None and key[0] != namespace:
                continue
            for object_key, body in list(self._by_service[key].items()):
                is_known_only_here = object_key[0] == kind.name and (key, object_key) not in listed
                if is_known_only_here and _version(body) <= int(version):
                    self._forget(key, object_key)
        self._forget_deletions(kind, namespace, int(version))

    def service(self, key: ServiceKey) -> Manifest | None:
        if key not in self._by_service:
            return None
        return self._by_service[key].get((INFERENCE_SERVICE.name, key[1]))

    def services(self) -> list[ServiceKey]:
        return [key for key in self._by_service if self.service(key) is not None]

    def snapshot(self, key: ServiceKey) -> Snapshot:
        objects = self._by_service.get(key, {})
        children = {
            kind_name: body
            for (kind_name, name), body in objects.items()
            if name == key[1] and kind_name not in (*_BY_LABEL, INFERENCE_SERVICE.name)
        }
        pods, replica_sets, config_maps = (
            tuple(sorted(_of_kind(objects, kind), key=lambda body: str(body["metadata"]["name"])))
            for kind in (POD, REPLICA_SET, CONFIG_MAP)
        )
        return Snapshot(children, pods, replica_sets, config_maps=config_maps)

    def _forget_deletions(self, kind: Kind, namespace: str | None, version: int) -> None:
        """Of before a listing: it has told what was gone then."""
        self._deleted = {
            (key, object_key): deleted
            for (key, object_key), deleted in self._deleted.items()
            if deleted > version or object_key[0] != kind.name or namespace not in (None, key[0])
        }

    def _forget(self, key: ServiceKey, object_key: _ObjectKey) -> None:
        objects = self._by_service[key]
        objects.pop(object_key, None)
        if not objects:
            del self._by_service[key]


def service_key(kind: Kind, body: Manifest) -> ServiceKey | None:
    """The InferenceService that an object is, or belongs to: by its name, or by its label."""
    metadata = body["metadata"]
    if kind.name not in _BY_LABEL:
        return metadata["namespace"], metadata["name"]
    name = metadata.get("labels", {}).get(SERVICE_LABEL) or _owner(metadata)
    return None if name is None else (metadata["namespace"], name)


def _owner(metadata: Mapping[str, Any]) -> str | None:
    """The InferenceService that owns it: of a child that has lost its label."""
    for owner in metadata.get("ownerReferences", []):
        if owner["kind"] == INFERENCE_SERVICE.name:
            return str(owner["name"])
    return None


def _of_kind(objects: Mapping[_ObjectKey, Manifest], kind: Kind) -> list[Manifest]:
    return [body for (kind_name, _), body in objects.items() if kind_name == kind.name]


def _object_key(kind: Kind, body: Manifest) -> _ObjectKey:
    return kind.name, body["metadata"]["name"]


def _version(body: Manifest) -> int:
    return int(body["metadata"]["resourceVersion"])


def _is_older_or_same(body: Manifest, known: Manifest) -> bool:
    return _version(body) <= _version(known)


def _slim(kind: Kind, body: Manifest) -> Manifest:
    """Without what is never read here: who owns which field, and a ReplicaSet's copy of the pod."""
    metadata = {
        field: value for field, value in body["metadata"].items() if field != "managedFields"
    }
    slim = {**body, "metadata": metadata}
    if kind == REPLICA_SET:
        slim["spec"] = {"replicas": body["spec"].get("replicas", 0)}
    return slim
