"""Bodies and a fake API server for the operator's tests.

Pure parts are tested with tables over the bodies made here. `FakeCluster` stands for
cluster.Cluster where a test needs answers that a real API server gives only by accident; what a real
one does is tested in test_*_on_cluster.py.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.config import EngineDefaults
from octavo_operator.errors import ApiError
from octavo_operator.kinds import Kind, Manifest, kind_of

REPOSITORY = Path(__file__).parents[2]


class FakeCluster:
    """Keeps what is applied; answers with the errors that a test puts into `failures`."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
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

    async def patch_status(
        self, kind: Kind, namespace: str, name: str, patch: Manifest
    ) -> Manifest:
        self._call("status", kind)
        found = self.objects[kind.name, namespace, name]
        status = {**found.get("status", {}), **patch["status"]}
        status = {field: value for field, value in status.items() if value is not None}
        return self._store(kind, {**found, "status": status})

    def put(self, manifest: Manifest) -> Manifest:
        return self._store(kind_of(manifest), manifest)

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


@pytest.fixture
def fake_cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def service_body() -> Callable[..., Manifest]:
    """An InferenceService as the API server shows it: `service_body({"replicas": 2})`."""

    def make(spec: dict[str, Any] | None = None, **metadata: Any) -> Manifest:
        return {
            "apiVersion": "serving.octavo.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {
                "name": "chat",
                "namespace": "team",
                "uid": "uid-1",
                "generation": 3,
                "resourceVersion": "10",
                **metadata,
            },
            "spec": {"model": {"uri": "file:///models/chat"}, **(spec or {})},
        }

    return make


@pytest.fixture
def pod_body() -> Callable[..., Manifest]:
    """A pod as the API server shows it; keyword arguments become its status."""

    def make(
        name: str = "chat-1", metadata: dict[str, Any] | None = None, **status: Any
    ) -> Manifest:
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "team",
                "resourceVersion": "20",
                "labels": {"serving.octavo.dev/service": "chat"},
                **(metadata or {}),
            },
            "status": status,
        }

    return make


@pytest.fixture
def engine_defaults() -> EngineDefaults:
    return EngineDefaults(image="octavo-engine:1")


@pytest.fixture(scope="session")
def crd() -> Manifest:
    path = REPOSITORY / "crds" / "inferenceservices.yaml"
    loaded: Manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="session")
def examples() -> dict[str, Manifest]:
    """File name of a numbered example -> the object in it."""
    folder = REPOSITORY / "crds" / "examples"
    return {
        path.name: yaml.safe_load(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("*.yaml"))
    }
