"""The pod of one replica: from a service and the operator's engine defaults to a template. Pure.

Nothing here depends on the number of replicas: a change of scale changes no pod.
"""

from octavo_operator import deadlines, merge
from octavo_operator.api import InferenceService
from octavo_operator.config import EngineDefaults
from octavo_operator.engine_args import ENGINE_PORT, TERMINATION_LOG, serve_args
from octavo_operator.fetch_container import fetch_container, with_engines_overlay
from octavo_operator.kinds import Manifest
from octavo_operator.model_source import Fetched
from octavo_operator.pod_volumes import mounts, volumes

CONTAINER_NAME = "engine"
UNROUTE_SECONDS = 5
"""A leaving pod still answers so long, until every node has taken it out of its routes."""
ABORT_SECONDS = 25
"""After the drain: time to end what is left in order, and to exit."""
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
    template = base
    for over in (
        defaults.pod_overlay,
        service.spec.pod_template.model_dump(exclude_defaults=True),
    ):
        template = merge.overlay(template, over)
        template = with_engines_overlay(template, over, CONTAINER_NAME)
    return template


def _pod_spec(service: InferenceService, defaults: EngineDefaults) -> Manifest:
    spec = service.spec
    drain_s = spec.rollout.drain_seconds
    engine = _container(service, defaults)
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
        "containers": [engine],
        "volumes": volumes(service),
        **_placement(service),
    }
    source = service.model_source
    if isinstance(source, Fetched):
        resources = _resources(service, with_accelerator=False)
        pod["initContainers"] = [
            fetch_container(service, engine, source, resources, defaults.device_with_accelerator)
        ]
    elif spec.model.secret_ref is not None:  # the node pulls the model's image with it
        pod["imagePullSecrets"] = [{"name": spec.model.secret_ref.name}]
    return pod


def _placement(service: InferenceService) -> Manifest:
    """Only what is asked for, so that a field that is not ours stays untouched."""
    spec = service.spec
    node_selector = dict(spec.node_selector)
    if spec.accelerator.product is not None:
        node_selector[spec.accelerator.product_label] = spec.accelerator.product
    placement: Manifest = {
        "nodeSelector": node_selector,
        "tolerations": [
            toleration.model_dump(by_alias=True, exclude_none=True)
            for toleration in spec.tolerations
        ],
        "affinity": spec.affinity.model_dump(by_alias=True, exclude_defaults=True),
        "priorityClassName": spec.priority_class_name,
    }
    return {field: value for field, value in placement.items() if value}


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
        "volumeMounts": mounts(service),
        **_probes(service),
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


def _probes(service: InferenceService) -> Manifest:
    load_s = deadlines.limits(service.spec.rollout.progress_deadline_seconds).load.total_seconds()

    def get(path: str) -> Manifest:
        return {"httpGet": {"path": path, "port": "http", "scheme": "HTTP"}}

    return {
        # Loading ends when readyz answers, so until then liveness does not judge.
        "startupProbe": {
            **get("/readyz"),
            "periodSeconds": 1,
            "timeoutSeconds": 2,
            "failureThreshold": int(load_s),
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


def _resources(service: InferenceService, *, with_accelerator: bool = True) -> Manifest:
    resources: Manifest = {}
    requests: Manifest = dict(service.spec.resources.requests)
    limits: Manifest = dict(service.spec.resources.limits)
    if service.accelerator_count and with_accelerator:
        name = service.spec.accelerator.resource_name
        requests[name] = limits[name] = str(service.accelerator_count)
    if requests:
        resources["requests"] = requests
    if limits:
        resources["limits"] = limits
    return resources
