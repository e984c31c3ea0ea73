"""How Prometheus finds a service's pods, in the words of its operator. Pure."""

from octavo_operator.api import InferenceService
from octavo_operator.child import child, labels, selector
from octavo_operator.config import PodMonitorSettings
from octavo_operator.kinds import POD_MONITOR, Manifest


def pod_monitor(service: InferenceService, settings: PodMonitorSettings) -> Manifest:
    """How often is left to the Prometheus that chooses it."""
    manifest = child(service, POD_MONITOR)
    metadata = {**manifest["metadata"], "labels": {**settings.labels, **labels(service)}}
    return {
        **manifest,
        "metadata": metadata,
        "spec": {
            "selector": selector(service),
            "podMetricsEndpoints": [{"port": "http", "path": "/metrics"}],
        },
    }
