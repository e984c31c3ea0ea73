"""What should exist for an InferenceService, in manifests. Pure.

Manifests hold exactly the fields that the operator owns, so that foreign fields stay untouched by
server-side apply.
"""

from collections.abc import Sequence

from octavo_operator import policies
from octavo_operator.api import InferenceService
from octavo_operator.child import child, digest, labels, selector
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
    Kind,
    Manifest,
)
from octavo_operator.pod_monitor import pod_monitor
from octavo_operator.pod_template import pod_template
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
            _deployment(service, replicas, defaults),
            *([pod_monitor(service, monitors)] if POD_MONITOR in optional else []),
        )
    )


def kinds(service: InferenceService, optional: Sequence[Kind] = ()) -> tuple[Kind, ...]:
    """Of what `wanted` gives."""
    unwanted = set()
    if service.new_claim is None:
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
    claim = service.new_claim
    if claim is None:
        return ()
    spec: Manifest = {
        "accessModes": [claim.access_mode],
        "resources": {"requests": {"storage": str(claim.size)}},
    }
    if claim.storage_class_name is not None:
        spec["storageClassName"] = claim.storage_class_name
    return ({**child(service, PERSISTENT_VOLUME_CLAIM), "spec": spec},)


def _config_maps(service: InferenceService) -> tuple[Manifest, ...]:
    files = settings_files(service)
    return ({**child(service, CONFIG_MAP), "data": files},) if files else ()


def _deployment(service: InferenceService, replicas: int, defaults: EngineDefaults) -> Manifest:
    return {
        **child(service, DEPLOYMENT),
        "spec": {
            "replicas": replicas,
            "selector": selector(service),
            "strategy": {"type": "RollingUpdate", "rollingUpdate": _steps(service)},
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": service.spec.rollout.progress_deadline_seconds,
            "template": pod_template(service, labels(service), defaults),
        },
    }


def _steps(service: InferenceService) -> Manifest:
    rollout = service.spec.rollout
    if rollout.strategy == "recreate":
        # One by one: taking all at once, as the Deployment's own Recreate does, would cut more.
        return {"maxUnavailable": 1, "maxSurge": 0}
    return {"maxUnavailable": 0, "maxSurge": rollout.max_surge or 1}


def _with_digest(manifest: Manifest) -> Manifest:
    metadata = {**manifest["metadata"], "annotations": {APPLIED_ANNOTATION: digest(manifest)}}
    return {**manifest, "metadata": metadata}
