"""The volumes of a replica's pod, and where its container mounts each. Pure."""

from octavo_operator.api import InferenceService
from octavo_operator.engine_args import API_KEYS_FILE, API_KEYS_FOLDER, SETTINGS_FOLDER
from octavo_operator.fetch_container import SECRET_VOLUME
from octavo_operator.kinds import Manifest
from octavo_operator.model_source import Fetched
from octavo_operator.settings_files import config_map_name

_API_KEYS = "api-keys"
_SETTINGS = "settings"


def volumes(service: InferenceService) -> list[Manifest]:
    found: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    if service.replica_claim is None:  # the StatefulSet brings it otherwise
        found.insert(0, service.model_source.volume)
    if service.accelerator_count > 1:
        # Ranks talk through shared memory; a container's own /dev/shm holds only 64 MiB.
        found.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    secret = service.spec.model.secret_ref
    if secret is not None and isinstance(service.model_source, Fetched):
        found.append({"name": SECRET_VOLUME, "secret": {"secretName": secret.name}})
    settings = config_map_name(service)
    if settings is not None:
        found.append({"name": _SETTINGS, "configMap": {"name": settings}})
    if service.spec.auth is not None:
        reference = service.spec.auth.api_keys_secret_ref
        items = [{"key": reference.key, "path": API_KEYS_FILE}]
        found.append({"name": _API_KEYS, "secret": {"secretName": reference.name, "items": items}})
    return found


def mounts(service: InferenceService) -> list[Manifest]:
    found: list[Manifest] = [
        service.model_source.mount,
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    if service.accelerator_count > 1:
        found.append({"name": "shm", "mountPath": "/dev/shm"})
    if config_map_name(service) is not None:
        found.append({"name": _SETTINGS, "mountPath": SETTINGS_FOLDER, "readOnly": True})
    if service.spec.auth is not None:
        # The whole volume: a subPath would never see a changed Secret.
        found.append({"name": _API_KEYS, "mountPath": API_KEYS_FOLDER, "readOnly": True})
    return found
