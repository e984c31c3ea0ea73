"""The engine's settings that are whole files, and the ConfigMap that holds them. Pure.

Each content has a ConfigMap of its own, named by it and immutable: a container that restarts in the
middle of a rollout reads what its pod was made with, and not what newer pods get.
"""

from octavo_operator.api import InferenceService
from octavo_operator.child import child, digest
from octavo_operator.engine_args import CHAT_TEMPLATE_FILE
from octavo_operator.kinds import CONFIG_MAP, Manifest

_DIGEST_LENGTH = 10


def settings_files(service: InferenceService) -> dict[str, str]:
    """Name of the file -> its text; empty where the service needs no ConfigMap."""
    template = service.spec.engine.chat_template
    return {} if template is None else {CHAT_TEMPLATE_FILE: template}


def config_map_name(service: InferenceService) -> str | None:
    """None where the service needs none."""
    files = settings_files(service)
    return f"{service.name}-{digest(files)[:_DIGEST_LENGTH]}" if files else None


def config_map(service: InferenceService) -> Manifest | None:
    name = config_map_name(service)
    if name is None:
        return None
    made = child(service, CONFIG_MAP)
    metadata = {**made["metadata"], "name": name}
    return {**made, "metadata": metadata, "immutable": True, "data": settings_files(service)}
