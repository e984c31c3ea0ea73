"""A fake API server for tests that need answers which a real one gives only by accident.

Stands for cluster.Cluster; what a real one does is tested in test_*_on_cluster.py.
"""

import copy
from typing import Any

from octavo_operator.cluster import Listing
from octavo_operator.errors import ApiError, ApiUnavailable
from octavo_operator.kinds import POD, Kind, Manifest, kind_of


class FakeCluster:
    """Keeps what is applied; answers with the errors that a test puts into `failures`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.events: dict[str, list[Manifest]] = {}
        """Uid of a pod -> its Events."""
        self.served: set[Kind] = set()
        """Optional kinds whose definitions are there."""
        self.calls: list[str] = []
        self.failures: dict[str, ApiError] = {}
        """First word of a call and kind, as in "apply Deployment" -> error."""
        self._version = 100

    async def apply(self, manifest: Manifest) -> Manifest:
        kind = kind_of(manifest)
        self._call("apply", kind)
        return self._store(kind, manifest, generation=1)

    async def get(self, kind: Kind, namespace: str, name: str) -> Manifest | None:
        self._call("get", kind)
        return self.objects.get((kind.name, namespace, name))

    async def list(
        self,
        kind: Kind,
        namespace: str | None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> Listing:
        """Only Events are listed: those that the test has put beside a pod's uid."""
        self._call("list", kind)
        uid = field_selector.removeprefix("involvedObject.uid=")
        return Listing(tuple(self.events.get(uid, ())), str(self._version))

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, patch: Manifest
    ) -> Manifest:
        self._call("status", kind)
        found = self.objects[kind.name, namespace, name]
        if patch["metadata"]["uid"] != found["metadata"]["uid"]:
            raise ApiUnavailable("PATCH", 409, "the UID in the precondition is another one")
        status = {**found.get("status", {}), **patch["status"]}
        status = {field: value for field, value in status.items() if value is not None}
        return self._store(kind, {**found, "status": status})

    async def serves(self, kind: Kind) -> bool:
        return kind in self.served

    async def delete(self, kind: Kind, namespace: str, name: str, uid: str) -> None:
        self._call("delete", kind)
        self._take(kind, namespace, name, uid)

    async def evict(self, namespace: str, name: str, uid: str) -> bool:
        self._call("evict", POD)
        return self._take(POD, namespace, name, uid)

    async def create(self, kind: Kind, manifest: Manifest) -> Manifest:
        self._call("create", kind)
        return self._store(kind, manifest)

    async def patch(
        self, kind: Kind, namespace: str, name: str, patch: Manifest
    ) -> Manifest | None:
        self._call("patch", kind)
        found = self.objects.get((kind.name, namespace, name))
        return None if found is None else self._store(kind, {**found, **patch})

    def put(self, manifest: Manifest) -> Manifest:
        return self._store(kind_of(manifest), manifest)

    def _take(self, kind: Kind, namespace: str, name: str, uid: str) -> bool:
        found = self.objects.get((kind.name, namespace, name))
        if found is None or found["metadata"].get("uid") != uid:
            return False
        del self.objects[kind.name, namespace, name]
        return True

    def _call(self, verb: str, kind: Kind) -> None:
        call = f"{verb} {kind.name}"
        self.calls.append(call)
        if call in self.failures:
            raise self.failures[call]

    def _store(self, kind: Kind, manifest: Manifest, **more: Any) -> Manifest:
        self._version += 1
        stored = copy.deepcopy(manifest)
        stored["metadata"] = {**more, **stored["metadata"], "resourceVersion": str(self._version)}
        key = (kind.name, stored["metadata"]["namespace"], stored["metadata"]["name"])
        self.objects[key] = stored
        return stored
