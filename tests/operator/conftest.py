"""Bodies and a fake API server for the operator's tests.

Pure parts are tested with tables over the bodies made here. `FakeCluster` stands for
cluster.Cluster where a test needs answers that a real API server gives only by accident; what a
real one does is tested in test_*_on_cluster.py.
"""

import copy
import json
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import audit, hostenv
from tests.operator import stand_in
from tests.operator.cluster_operator import OperatorProcess, roles
from tests.operator.pod_monitor_kind import PodMonitorKind

from octavo_operator.cluster import Listing
from octavo_operator.config import EngineDefaults
from octavo_operator.errors import ApiError, ApiUnavailable
from octavo_operator.kinds import Kind, Manifest, kind_of

REPOSITORY = Path(__file__).parents[2]


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
        labels = {"serving.octavo.dev/service": "chat", "pod-template-hash": "new"}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "team",
                "resourceVersion": "20",
                "labels": labels,
                **(metadata or {}),
            },
            "status": status,
        }

    return make


@pytest.fixture
def replica_set_body() -> Callable[..., Manifest]:
    """A ReplicaSet of the Deployment's `revision`th template; by default that of `pod_body`."""

    def make(template_hash: str = "new", revision: int = 1) -> Manifest:
        labels = {"serving.octavo.dev/service": "chat", "pod-template-hash": template_hash}
        return {
            "apiVersion": "apps/v1",
            "kind": "ReplicaSet",
            "metadata": {
                "name": f"chat-{template_hash}",
                "namespace": "team",
                "resourceVersion": "15",
                "labels": labels,
                "annotations": {"deployment.kubernetes.io/revision": str(revision)},
            },
            "spec": {"replicas": 1, "template": {"spec": {}}},
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


@dataclass(frozen=True)
class Kubectl:
    """kubectl on the test cluster, in one namespace."""

    program: Path
    kubeconfig: Path
    namespace: str

    def __call__(self, *words: str, stdin: str | None = None) -> str:
        """Its output; raises CalledProcessError, whose stderr says why."""
        return self.tried(*words, stdin=stdin, check=True).stdout

    def tried(
        self, *words: str, stdin: str | None = None, check: bool = False
    ) -> subprocess.CompletedProcess[str]:
        command = [self.program, f"--kubeconfig={self.kubeconfig}", f"-n{self.namespace}", *words]
        return subprocess.run(
            command, input=stdin, capture_output=True, text=True, check=check, timeout=120
        )

    def apply(self, *manifests: Manifest) -> None:
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self("apply", "--filename=-", stdin=json.dumps(items))

    def get(self, *words: str) -> Manifest:
        """One object, or a list as {"items": [...]}."""
        found: Manifest = json.loads(self("get", *words, "--output=json"))
        return found

    def wait_until(self, what: str, holds: Callable[[], object], timeout_s: float = 30) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline_s:
                seen = self("get", "osvc,deployments,services,pods", "--output=yaml")
                raise AssertionError(f"not so within {timeout_s} s: {what}\n{seen}")
            time.sleep(0.1)


@pytest.fixture(scope="session")
def api_server(_any_cluster: Any) -> Any:
    """The session's cluster (a ClusterInfo); these tests need no nodes in it."""
    return _any_cluster


@pytest.fixture(scope="session")
def crd_installed(api_server: Any) -> Iterator[None]:
    """The CRD of this checkout; taken away again unless it was there before."""
    kubectl = Kubectl(api_server.kubectl, api_server.kubeconfig, "default")
    name = "inferenceservices.serving.octavo.dev"
    was_there = kubectl.tried("get", "crd", name).returncode == 0
    source = str(REPOSITORY / "crds" / "inferenceservices.yaml")
    kubectl("apply", "--server-side", "--force-conflicts", f"--filename={source}")
    kubectl("wait", "--for=condition=Established", f"crd/{name}", "--timeout=60s")
    yield
    if not was_there:
        kubectl("delete", "crd", name, "--timeout=60s")


@pytest.fixture
def pod_monitors_served(api_server: Any) -> Iterator[PodMonitorKind]:
    """The kind PodMonitor, which a test may take away; gone afterwards unless it was there."""
    kubectl = Kubectl(api_server.kubectl, api_server.kubeconfig, "default")
    kind = PodMonitorKind(kubectl)
    was_there = kind.is_there()
    if not was_there:
        kind.install()
    yield kind
    if not was_there:
        kind.remove()


@pytest.fixture(scope="module")
def installed_operators_rest(api_server: Any) -> Iterator[None]:
    """One that other tests have installed for the whole cluster would act on our services, too.

    They are as they were after the module: other tests use them.
    """
    kubectl = Kubectl(api_server.kubectl, api_server.kubeconfig, "default")
    selector = "--selector=app.kubernetes.io/name=octavo-operator"
    found = kubectl.get("deployments", "--all-namespaces", selector)["items"]
    for deployment in found:
        _scale(kubectl, deployment, 0)
    for deployment in found:
        namespace = f"--namespace={deployment['metadata']['namespace']}"
        kubectl(namespace, "wait", "pod", selector, "--for=delete", "--timeout=60s")
    yield
    for deployment in found:
        _scale(kubectl, deployment, deployment["spec"]["replicas"])


def _scale(kubectl: Kubectl, deployment: Manifest, replicas: int) -> None:
    metadata = deployment["metadata"]
    name = f"deployment/{metadata['name']}"
    kubectl(f"--namespace={metadata['namespace']}", "scale", name, f"--replicas={replicas}")


@pytest.fixture
def kubectl(
    api_server: Any, crd_installed: None, installed_operators_rest: None
) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""
    with _namespace(api_server) as made:
        yield made


@contextmanager
def _namespace(api_server: Any) -> Iterator[Kubectl]:
    made = Kubectl(api_server.kubectl, api_server.kubeconfig, f"test-{uuid.uuid4().hex[:8]}")
    made("create", "namespace", made.namespace)
    yield made
    made("delete", "namespace", made.namespace, "--wait=false")


@pytest.fixture(scope="module")
def kubectl_on_nodes(
    cluster: Any,
    cluster_provider: Any,
    crd_installed: None,
    installed_operators_rest: None,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Kubectl]:
    """kubectl in a namespace of the module's own; its operator runs what `stand_in.doing` says."""
    cluster_provider.load_image(hostenv.engine_archive())
    with _namespace(cluster) as made:
        made.apply(*roles(cluster, made.namespace))
        folder = tmp_path_factory.mktemp("operator")
        process = OperatorProcess(cluster, made, folder, "first")
        engine = stand_in.engine_settings(cluster.node_prefix)
        process.start(engine=engine, surgeWaitSeconds=2)
        yield made
        process.kill()


@pytest.fixture(scope="module")
def kubectl_shared(api_server: Any, crd_installed: None) -> Kubectl:
    """kubectl in the default namespace, for what leaves nothing behind."""
    return Kubectl(api_server.kubectl, api_server.kubeconfig, "default")


@pytest.fixture
def start_operator(
    api_server: Any, kubectl: Kubectl, tmp_path: Path
) -> Iterator[Callable[..., OperatorProcess]]:
    """Starts operators of the given identities for the test's namespace; ends them afterwards."""
    kubectl.apply(*roles(api_server, kubectl.namespace))
    started: list[OperatorProcess] = []

    def start(identity: str = "first", **settings: Any) -> OperatorProcess:
        process = OperatorProcess(api_server, kubectl, tmp_path, identity)
        started.append(process)
        return process.start(**settings)

    yield start
    for process in started:
        process.kill()
    if api_server.audit_log is not None:
        assert not audit.refused(api_server.audit_log, kubectl.namespace, "octavo-operator")


@pytest.fixture
def operator(start_operator: Callable[..., OperatorProcess]) -> OperatorProcess:
    return start_operator()
