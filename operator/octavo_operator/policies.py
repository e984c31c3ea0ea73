"""What guards a service's pods: a PodDisruptionBudget and a NetworkPolicy. Pure."""

from collections.abc import Iterable

from octavo_operator.api import InferenceService
from octavo_operator.child import child, selector
from octavo_operator.engine_args import ENGINE_PORT
from octavo_operator.kinds import NETWORK_POLICY, POD_DISRUPTION_BUDGET, Manifest

_NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


def disruption_budget(service: InferenceService) -> Manifest:
    return {
        **child(service, POD_DISRUPTION_BUDGET),
        "spec": {
            # Not minAvailable: with one replica it would hold up every drain of its node for ever.
            "maxUnavailable": 1,
            "selector": selector(service),
            # A replica that does not answer serves nobody: it may go at any time.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def network_policy(
    service: InferenceService, operator_namespace: str, monitoring: Iterable[str] = ()
) -> Manifest:
    """`monitoring`: namespaces of those who read metrics.

    Where the service is open to all, the policy says so: it need not be deleted.
    """
    network = service.spec.network
    ingress: Manifest = {}
    if network.isolated:
        namespaces = sorted({operator_namespace, *monitoring, *network.allowed_namespaces})
        ingress = {
            "from": [
                {"podSelector": {}},  # all of the service's own namespace
                *(
                    {"namespaceSelector": {"matchLabels": {_NAMESPACE_NAME_LABEL: namespace}}}
                    for namespace in namespaces
                ),
            ],
            "ports": [{"port": ENGINE_PORT, "protocol": "TCP"}],
        }
    return {
        **child(service, NETWORK_POLICY),
        "spec": {
            "podSelector": selector(service),
            "policyTypes": ["Ingress"],
            "ingress": [ingress],
        },
    }
