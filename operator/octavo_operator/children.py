"""What should exist for an InferenceService, in manifests. Pure.

Manifests hold exactly the fields that the operator owns, so that foreign fields stay untouched by
server-side apply.
"""

from collections.abc import Sequence

from octavo_operator import policies, workloads
from octavo_operator.api import InferenceService
from octavo_operator.child import child, digest
from octavo_operator.config import EngineDefaults, PodMonitorSettings
from octavo_operator.kinds import (
    APPLIED_ANNOTATION,
    CHILD_KINDS,
    CONFIG_MAP,
    DEPLOYMENT,
    PERSISTENT_VOLUME_CLAIM,
    POD_MONITOR,
    SERVICE,
    SERVICE_ACCOUNT,
    SERVICE_LABEL,
    STATEFUL_SET,
    Kind,
    Manifest,
)
from octavo_operator.pod_monitor import pod_monitor
from octavo_operator.settings_files import settings_files

SERVICE_PORT = 80
_NO_MONITORS = PodMonitorSettings(install=False)


def wanted(
    service: InferenceService,
    replicas: int,
    defaults: EngineDefaults,
    operator_namespace: str,
    monitors: PodMonitorSettings = _NO_MONITORS,
    optional: Sequence[Kind] = (),
) -> tuple[Manifest, ...]:
    """The manifests in the order in which they are applied, each with its digest.

    `optional`: those of the optional kinds that are served.
    """
    return tuple(
        _with_digest(manifest)
        for manifest in (
            _service_account(service),
            _service(service),
            *_claims(service),
            *_config_maps(service),
            policies.disruption_budget(service),
            policies.network_policy(service, operator_namespace, monitors.allowed_namespaces),
            _workload(service, replicas, defaults),
            *([pod_monitor(service, monitors)] if POD_MONITOR in optional else []),
        )
    )


def kinds(service: InferenceService, optional: Sequence[Kind] = ()) -> tuple[Kind, ...]:
    """Of what `wanted` gives."""
    unwanted = {STATEFUL_SET if service.replica_claim is None else DEPLOYMENT}
    if service.shared_claim is None:
        unwanted.add(PERSISTENT_VOLUME_CLAIM)
    if not settings_files(service):
        unwanted.add(CONFIG_MAP)
    return (*(kind for kind in CHILD_KINDS if kind not in unwanted), *optional)


def label_selector(name: str) -> str:
    return f"{SERVICE_LABEL}={name}"


def url(namespace: str, name: str) -> str:
    """Base URL for OpenAI clients inside the cluster; the port is the default one of http."""
    return f"http://{name}.{namespace}.svc/v1"


def _service_account(service: InferenceService) -> Manifest:
    # The engine never talks to the API server.
    return {**child(service, SERVICE_ACCOUNT), "automountServiceAccountToken": False}


def _service(service: InferenceService) -> Manifest:
    return {
        **child(service, SERVICE),
        "spec": {
            "type": "ClusterIP",
            "selector": {SERVICE_LABEL: service.name},
            "ports": [
                {"name": "http", "port": SERVICE_PORT, "targetPort": "http", "protocol": "TCP"}
            ],
        },
    }


def _claims(service: InferenceService) -> tuple[Manifest, ...]:
    """The cache that is made by us; it goes with its service."""
    claim = service.shared_claim
    if claim is None:
        return ()
    spec = workloads.claim_spec(claim)
    return ({**child(service, PERSISTENT_VOLUME_CLAIM), "spec": spec},)


def _config_maps(service: InferenceService) -> tuple[Manifest, ...]:
    files = settings_files(service)
    return ({**child(service, CONFIG_MAP), "data": files},) if files else ()


def _workload(service: InferenceService, replicas: int, defaults: EngineDefaults) -> Manifest:
    claim = service.replica_claim
    if claim is None:
        return workloads.deployment(service, replicas, defaults)
    return workloads.stateful_set(service, claim, replicas, defaults)


def _with_digest(manifest: Manifest) -> Manifest:
    metadata = {**manifest["metadata"], "annotations": {APPLIED_ANNOTATION: digest(manifest)}}
    return {**manifest, "metadata": metadata}
