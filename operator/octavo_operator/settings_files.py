"""The engine's settings that are whole files: what a service's ConfigMap holds. Pure."""

from octavo_operator.api import InferenceService
from octavo_operator.engine_args import CHAT_TEMPLATE_FILE


def settings_files(service: InferenceService) -> dict[str, str]:
    """Name of the file -> its text; empty where the service needs no ConfigMap."""
    template = service.spec.engine.chat_template
    return {} if template is None else {CHAT_TEMPLATE_FILE: template}
