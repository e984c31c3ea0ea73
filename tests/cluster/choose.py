"""Which provider a cluster comes from: $KUBECONFIG, kind where Docker runs, else local."""

from __future__ import annotations

from tests.cluster.given import given_provider
from tests.cluster.kind import KindProvider
from tests.cluster.local import LocalProvider
from tests.cluster.prepare import kind_works
from tests.cluster.programs import Say
from tests.cluster.provider import Provider

DEFAULT_NAME = "octavo"


def choose(name: str, *, num_nodes: int, gpus_per_node: int, say: Say) -> Provider:
    """For tests and the demo: a given cluster comes first.

    A KUBECONFIG that names the local cluster `name` itself is that cluster, not a foreign one: who
    exported it as told can still remove it.
    """
    given = given_provider(say)
    if given is not None and (given.local is None or given.local.name != name):
        return given
    return own(name, num_nodes=num_nodes, gpus_per_node=gpus_per_node, say=say)


def own(name: str, *, num_nodes: int, gpus_per_node: int, say: Say) -> Provider:
    """For `cluster-up`: one of this machine's, whatever $KUBECONFIG says."""
    if num_nodes > 0 and kind_works():
        return KindProvider(name, num_nodes, gpus_per_node, say)
    return LocalProvider(name, num_nodes, gpus_per_node, say)
