"""The pod of one replica: from a service and the operator's engine defaults to a template. Pure.

Nothing here depends on the number of replicas: a change of scale changes no pod.
"""

from octavo_operator import merge
from octavo_operator.api import InferenceService
from octavo_operator.config import EngineDefaults
from octavo_operator.engine_args import ENGINE_PORT, TERMINATION_LOG, serve_args
from octavo_operator.kinds import Manifest

CONTAINER_NAME = "engine"
UNROUTE_SECONDS = 5
"""A leaving pod still answers so long, until every node has taken it out of its routes."""
ABORT_SECONDS = 25
"""After the drain: time to end what is left in order, and to exit."""
START_SECONDS = 1800
"""A replica that has not loaded its model by then is restarted."""
_USER_ID = 65532


def pod_template(
    service: InferenceService, labels: dict[str, str], defaults: EngineDefaults
) -> Manifest:
    base: Manifest = {
        "metadata": {
            "labels": labels,
            "annotations": {"kubectl.kubernetes.io/default-container": CONTAINER_NAME},
        },
        "spec": _pod_spec(service, defaults),
    }
    return merge.overlay(base, defaults.pod_overlay)


def _pod_spec(service: InferenceService, defaults: EngineDefaults) -> Manifest:
    spec = service.spec
    drain_s = spec.rollout.drain_seconds
    pod: Manifest = {
        "serviceAccountName": service.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": UNROUTE_SECONDS + drain_s + ABORT_SECONDS,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER_ID,
            "runAsGroup": _USER_ID,
            "fsGroup": _USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(service, defaults)],
        "volumes": _volumes(service),
    }
    if spec.node_selector:
        pod["nodeSelector"] = dict(spec.node_selector)
    if spec.tolerations:
        pod["tolerations"] = [
            toleration.model_dump(by_alias=True, exclude_none=True)
            for toleration in spec.tolerations
        ]
    return pod


def _container(service: InferenceService, defaults: EngineDefaults) -> Manifest:
    return {
        "name": CONTAINER_NAME,
        "image": service.spec.image or defaults.image,
        "imagePullPolicy": defaults.image_pull_policy,
        "command": ["octavo"],
        "args": serve_args(service, defaults.device_with_accelerator),
        "env": _env(service),
        "ports": [{"name": "http", "containerPort": ENGINE_PORT, "protocol": "TCP"}],
        "resources": _resources(service),
        "volumeMounts": _mounts(service),
        **_probes(),
        "lifecycle": {"preStop": {"sleep": {"seconds": UNROUTE_SECONDS}}},
        "terminationMessagePath": TERMINATION_LOG,
        # An engine that dies before it can say why leaves at least its last lines.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _probes() -> Manifest:
    def get(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}}

    return {
        # Loading ends when readyz answers, so until then liveness does not judge.
        "startupProbe": {
            **get("/readyz"),
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": START_SECONDS,
        },
        "readinessProbe": {
            **get("/readyz"),
            "periodSeconds": 2,
            "timeoutSeconds": 2,
            "failureThreshold": 2,
        },
        "livenessProbe": {
            **get("/livez"),
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 3,
        },
    }


def _env(service: InferenceService) -> list[Manifest]:
    # The root filesystem is read-only: caches of libraries go to the pod's own /tmp.
    own = [{"name": "HOME", "value": "/tmp"}]
    given = [{"name": env.name, "value": env.value} for env in service.spec.engine.env]
    names = {env["name"] for env in given}
    return [env for env in own if env["name"] not in names] + given


def _resources(service: InferenceService) -> Manifest:
    resources: Manifest = {}
    requests: Manifest = dict(service.spec.resources.requests)
    limits: Manifest = dict(service.spec.resources.limits)
    if service.accelerator_count:
        name = service.spec.accelerator.resource_name
        requests[name] = limits[name] = str(service.accelerator_count)
    if requests:
        resources["requests"] = requests
    if limits:
        resources["limits"] = limits
    return resources


def _volumes(service: InferenceService) -> list[Manifest]:
    volumes: list[Manifest] = [service.model_source.volume, {"name": "tmp", "emptyDir": {}}]
    if service.accelerator_count > 1:
        # Ranks talk through shared memory; a container's own /dev/shm holds only 64 MiB.
        volumes.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    return volumes


def _mounts(service: InferenceService) -> list[Manifest]:
    mounts: list[Manifest] = [
        service.model_source.mount,
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if service.accelerator_count > 1:
        mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    return mounts
