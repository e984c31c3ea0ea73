"""Bodies, a fake API server and a real one for the operator's tests.

Pure parts are tested with tables over the bodies made here. What needs a real API server asks for
`kubectl`, in a namespace of its own, and for an operator: `shared_operator` where any will do,
`operator` or `start_operator` where the test looks at the process or has settings for it. A module
asks for one or for the other, since a shared one serves all namespaces.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster import audit, hostenv
from tests.operator import stand_in
from tests.operator.cluster_operator import OperatorProcess, roles
from tests.operator.fake_cluster import FakeCluster
from tests.operator.kubectl import Kubectl, namespace_of_its_own
from tests.operator.pod_monitor_kind import PodMonitorKind

from octavo_operator.cache import ObjectCache, ServiceKey
from octavo_operator.config import EngineDefaults, PodMonitorSettings
from octavo_operator.events import EventWriter
from octavo_operator.kinds import INFERENCE_SERVICE, POD_MONITOR, Manifest
from octavo_operator.metrics import Metrics
from octavo_operator.optional_kinds import OptionalKinds
from octavo_operator.reconcile import Reconciler
from octavo_operator.samples import ServiceLoad
from octavo_operator.scaling import Autoscaler

REPOSITORY = Path(__file__).parents[2]


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


@pytest.fixture
def cache() -> ObjectCache:
    return ObjectCache()


@pytest.fixture
def optional_kinds(fake_cluster: FakeCluster) -> OptionalKinds:
    return OptionalKinds(fake_cluster, (POD_MONITOR,))  # type: ignore[arg-type]  # a fake


@pytest.fixture
def woken_later() -> list[tuple[ServiceKey, float]]:
    """(service, seconds) of each wish to look again."""
    return []


@pytest.fixture
def reconciler(
    fake_cluster: Any,
    cache: ObjectCache,
    engine_defaults: EngineDefaults,
    woken_later: list[tuple[ServiceKey, float]],
    optional_kinds: OptionalKinds,
) -> Reconciler:
    metrics = Metrics()

    def now() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    return Reconciler(
        fake_cluster,
        cache,
        engine_defaults,
        metrics,
        now,
        Autoscaler(lambda snapshot: ServiceLoad(), metrics),
        lambda key, delay_s: woken_later.append((key, delay_s)),
        EventWriter(fake_cluster, metrics, now),
        timedelta(seconds=60),
        "octavo-system",
        PodMonitorSettings(),
        optional_kinds,
    )


@pytest.fixture
def put(fake_cluster: FakeCluster, cache: ObjectCache) -> Callable[[Manifest], None]:
    def service(body: Manifest) -> None:
        cache.put(INFERENCE_SERVICE, fake_cluster.put(body))

    return service


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
    waiting = ("wait", "--for=condition=Established", f"crd/{name}", "--timeout=5s")
    # kubectl stumbles over a status that has no conditions yet.
    kubectl.wait_until("the kind", lambda: kubectl.tried(*waiting).returncode == 0)
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

    def scale(deployment: Manifest, replicas: int) -> None:
        metadata = deployment["metadata"]
        name = f"deployment/{metadata['name']}"
        kubectl(f"--namespace={metadata['namespace']}", "scale", name, f"--replicas={replicas}")

    for deployment in found:
        scale(deployment, 0)
    for deployment in found:
        namespace = f"--namespace={deployment['metadata']['namespace']}"
        kubectl(namespace, "wait", "pod", selector, "--for=delete", "--timeout=60s")
    yield
    for deployment in found:
        scale(deployment, deployment["spec"]["replicas"])


@pytest.fixture
def kubectl(
    api_server: Any, crd_installed: None, installed_operators_rest: None
) -> Iterator[Kubectl]:
    """kubectl in a namespace of the test's own."""
    with namespace_of_its_own(api_server) as made:
        yield made


@pytest.fixture(scope="module")
def kubectl_of_module(
    cluster: Any, cluster_provider: Any, crd_installed: None, installed_operators_rest: None
) -> Iterator[Kubectl]:
    """kubectl in a namespace of the module's own, with nodes that have the engine's image."""
    cluster_provider.load_image(hostenv.engine_archive())
    with namespace_of_its_own(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def operator_of_module(
    cluster: Any, kubectl_of_module: Kubectl, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """An operator for that namespace, not started yet; ended after the module."""
    kubectl_of_module.apply(*roles(cluster, kubectl_of_module.namespace))
    folder = tmp_path_factory.mktemp("operator")
    process = OperatorProcess(cluster, kubectl_of_module, folder, "first")
    yield process
    process.kill()
    if cluster.audit_log is not None:
        namespace = kubectl_of_module.namespace
        assert not audit.refused(cluster.audit_log, namespace, "octavo-operator")


@pytest.fixture(scope="module")
def kubectl_on_nodes(
    cluster: Any, kubectl_of_module: Kubectl, operator_of_module: OperatorProcess
) -> Kubectl:
    """kubectl in the module's namespace, where the operator runs what `stand_in.doing` says."""
    engine = stand_in.engine_settings(cluster.node_prefix)
    operator_of_module.start(engine=engine, surgeWaitSeconds=2)
    return kubectl_of_module


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


@pytest.fixture(scope="module")
def operator_settings() -> dict[str, Any]:
    """Of `shared_operator`; a module may have others."""
    return {}


@pytest.fixture(scope="module")
def shared_operator(
    api_server: Any,
    crd_installed: None,
    installed_operators_rest: None,
    operator_settings: dict[str, Any],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[OperatorProcess]:
    """One operator for all namespaces of the module's tests: to start one for each takes long."""
    with namespace_of_its_own(api_server) as kubectl:
        granted = roles(api_server, kubectl.namespace, cluster_wide=True)
        kubectl.apply(*granted)
        folder = tmp_path_factory.mktemp("operator")
        process = OperatorProcess(api_server, kubectl, folder, "shared")
        yield process.start(watchNamespaces=[], **operator_settings)
        process.kill()
        for manifest in granted:
            if manifest["kind"].startswith("Cluster"):
                kubectl("delete", manifest["kind"], manifest["metadata"]["name"])
        if api_server.audit_log is not None:
            assert not audit.refused(api_server.audit_log, kubectl.namespace, "octavo-operator")
