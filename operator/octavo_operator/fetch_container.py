"""The init container that brings the model's files, of the engine's own image. Pure."""

from collections.abc import Mapping
from typing import Any

from octavo_operator import merge
from octavo_operator.api import InferenceService
from octavo_operator.engine_args import fetch_args
from octavo_operator.kinds import Manifest
from octavo_operator.model_source import Fetched

FETCH_CONTAINER_NAME = "fetch"
SECRET_VOLUME = "model-secret"
_SECRET_FOLDER = "/etc/octavo/model-secret"
_SHARED = ("env", "envFrom", "volumeMounts", "securityContext")
"""Parts of an overlay for the engine's container that mean the fetch as well."""


def fetch_container(
    service: InferenceService,
    engine: Manifest,
    source: Fetched,
    resources: Manifest,
    device_with_accelerator: str,
) -> Manifest:
    """`engine`: the engine's container, which it resembles in all but its work."""
    secret = service.spec.model.secret_ref
    secret_folder = None if secret is None else _SECRET_FOLDER
    mounts: list[Manifest] = [
        {**source.mount, "readOnly": False},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if secret is not None:
        mounts.append({"name": SECRET_VOLUME, "mountPath": _SECRET_FOLDER, "readOnly": True})
    like_engine = (
        *("image", "imagePullPolicy", "command", "env", "securityContext"),
        *("terminationMessagePath", "terminationMessagePolicy"),
    )
    return {
        "name": FETCH_CONTAINER_NAME,
        **{field: engine[field] for field in like_engine},
        "args": fetch_args(service, source, secret_folder, device_with_accelerator),
        # What the replica holds anyhow; a pod's request is the larger of both.
        "resources": resources,
        "volumeMounts": mounts,
    }


def with_engines_overlay(template: Manifest, over: Mapping[str, Any], engine_name: str) -> Manifest:
    """What an overlay gives the engine of variables and mounts (proxies, certificates) it too."""
    containers = over.get("spec", {}).get("containers") or []
    shared = [
        {field: container[field] for field in _SHARED if field in container}
        for container in containers
        if container["name"] == engine_name
    ]
    fetching = [
        container
        for container in template["spec"].get("initContainers", [])
        if container["name"] == FETCH_CONTAINER_NAME
    ]
    if not shared or not fetching:
        return template
    named = [{"name": FETCH_CONTAINER_NAME, **part} for part in shared]
    return merge.overlay(template, {"spec": {"initContainers": named}})
