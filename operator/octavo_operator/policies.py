"""What guards a service's pods: a PodDisruptionBudget and a NetworkPolicy. Pure."""

from collections.abc import Iterable

from octavo_operator.api import InferenceService
from octavo_operator.child import child, selector
from octavo_operator.engine_args import ENGINE_PORT
from octavo_operator.kinds import NETWORK_POLICY, POD_DISRUPTION_BUDGET, Manifest

_NAMESPACE_NAME_LABEL = "kubernetes.io/metadata.name"


def disruption_budget(service: InferenceService, *, protects_start: bool = False) -> Manifest:
    """`protects_start`: while a replica that the service lacks is on its way, nobody may evict it.

    An eviction that only moves pods, as a consolidation of nodes does, would begin its start anew.
    """
    # Not minAvailable: with one replica it would hold up every drain of its node for ever.
    spec: Manifest = {"maxUnavailable": 1, "unhealthyPodEvictionPolicy": "AlwaysAllow"}
    if protects_start:
        spec = {"maxUnavailable": 0, "unhealthyPodEvictionPolicy": "IfHealthyBudget"}
    # A replica that does not answer, and is not on its way, may go at any time: it serves nobody.
    spec["selector"] = selector(service)
    return {**child(service, POD_DISRUPTION_BUDGET), "spec": spec}


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
