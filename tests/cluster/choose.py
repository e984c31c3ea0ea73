"""Which provider a cluster comes from: a given one, kind where Docker runs, else local."""

from __future__ import annotations

from tests.cluster.local import LocalProvider
from tests.cluster.programs import Say
from tests.cluster.provider import Provider

DEFAULT_NAME = "octavo"


def choose(name: str, *, num_nodes: int, gpus_per_node: int, say: Say) -> Provider:
    return LocalProvider(name, num_nodes, gpus_per_node, say)
