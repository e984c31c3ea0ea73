"""What tests and the demo know of a cluster, whoever provides it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class ClusterInfo:
    """A running cluster.

    `kubectl` and `helm` fit the API server's version. `num_nodes` is how many nodes run pods: 0
    means a control plane alone. `reaches_services`: whether this machine reaches pod and Service
    addresses. `audit_log`: the API server's, of calls by ServiceAccounts, where there is one.
    """

    name: str
    provider: str
    kubeconfig: Path
    kubectl: Path
    helm: Path
    num_nodes: int
    reaches_services: bool
    node_prefix: str = ""
    audit_log: Path | None = None


class Provider(Protocol):
    """Brings a cluster up and down; both may be repeated at any time, also after a kill."""

    def up(self) -> ClusterInfo:
        """Returns once the API server and all nodes are ready; at once when they are already."""
        ...

    def down(self) -> None:
        """Removes all that `up` made; does nothing when there is nothing."""
        ...

    def load_image(self, archive: Path) -> None:
        """Imports a Docker or OCI archive into every node, so that no registry is needed."""
        ...
