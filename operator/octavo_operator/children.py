"""What should exist for an InferenceService, in manifests. Pure.

Manifests hold exactly the fields that the operator owns, so that foreign fields stay untouched by
server-side apply.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from octavo_operator import kept_template, policies, workloads
from octavo_operator.api import InferenceService
from octavo_operator.child import child, digest, labels
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
from octavo_operator.pod_template import pod_template
from octavo_operator.settings_files import config_map, config_map_name

SERVICE_PORT = 80
_NO_MONITORS = PodMonitorSettings(install=False)


@dataclass(frozen=True)
class Seen:
    """What wishes depend on beside the spec."""

    workload: Manifest | None = None
    """What keeps the pods now."""
    protects_start: bool = False
    """Whether a replica that the service lacks is on its way."""


_NOTHING = Seen()


def wanted(
    service: InferenceService,
    replicas: int,
    defaults: EngineDefaults,
    operator_namespace: str,
    monitors: PodMonitorSettings = _NO_MONITORS,
    optional: Sequence[Kind] = (),
    seen: Seen = _NOTHING,
) -> tuple[Manifest, ...]:
    """The manifests in the order in which they are applied, each with its digest.

    `optional`: those of the optional kinds that are served, and wished.
    """
    return tuple(
        _with_digest(manifest)
        for manifest in (
            _service_account(service),
            _service(service),
            *_claims(service),
            *_config_maps(service),
            policies.disruption_budget(service, protects_start=seen.protects_start),
            policies.network_policy(service, operator_namespace, monitors.allowed_namespaces),
            _workload(service, replicas, defaults, seen.workload),
            *([pod_monitor(service, monitors)] if POD_MONITOR in optional else []),
        )
    )


def names(service: InferenceService, optional: Sequence[Kind] = ()) -> tuple[tuple[Kind, str], ...]:
    """Of what `wanted` gives."""
    settings = config_map_name(service)
    unwanted = {STATEFUL_SET if service.replica_claim is None else DEPLOYMENT}
    if service.shared_claim is None:
        unwanted.add(PERSISTENT_VOLUME_CLAIM)
    if settings is None:
        unwanted.add(CONFIG_MAP)
    given = {CONFIG_MAP: settings}
    found = (kind for kind in (*CHILD_KINDS, *optional) if kind not in unwanted)
    return tuple((kind, given.get(kind) or service.name) for kind in found)


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
    made = config_map(service)
    return () if made is None else (made,)


def _workload(
    service: InferenceService, replicas: int, defaults: EngineDefaults, found: Manifest | None
) -> Manifest:
    asked = kept_template.asked(service, defaults)
    kept = kept_template.kept(found, asked)
    template = pod_template(service, labels(service), defaults) if kept is None else kept
    claim = service.replica_claim
    if claim is None:
        made = workloads.deployment(service, replicas, template)
    else:
        made = workloads.stateful_set(service, claim, replicas, template)
    annotations = kept_template.annotation(template, asked)
    return {**made, "metadata": {**made["metadata"], "annotations": annotations}}


def _with_digest(manifest: Manifest) -> Manifest:
    metadata = manifest["metadata"]
    annotations = {**metadata.get("annotations", {}), APPLIED_ANNOTATION: digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}
