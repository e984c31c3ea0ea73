"""The given provider: whatever cluster $KUBECONFIG names. Makes nothing, removes nothing."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import programs
from tests.cluster.control_plane import AUDIT_LOG
from tests.cluster.errors import ClusterError
from tests.cluster.local import LocalProvider
from tests.cluster.programs import Say
from tests.cluster.provider import ClusterInfo
from tests.cluster.run import run
from tests.cluster.state import known_clusters


@dataclass(frozen=True)
class GivenProvider:
    """A cluster that is there already; `local` is set when it is one of this machine's own."""

    kubeconfig: Path
    local: LocalProvider | None
    say: Say

    def up(self) -> ClusterInfo:
        self.say(f"using the cluster of KUBECONFIG={self.kubeconfig}")
        found = programs.obtain_clients(say=self.say)
        words = [f"--kubeconfig={self.kubeconfig}", "get", "nodes", "--output=json"]
        nodes = json.loads(run([found["kubectl"], *words]))["items"]
        return ClusterInfo(
            name=self.local.name if self.local else "given",
            provider="given",
            kubeconfig=self.kubeconfig,
            kubectl=found["kubectl"],
            helm=found["helm"],
            num_nodes=len(nodes),
            reaches_services=self.local is not None,
            audit_log=self.local.folder.path / AUDIT_LOG if self.local else None,
        )

    def down(self) -> None:
        self.say(f"the cluster of KUBECONFIG={self.kubeconfig} stays")

    def load_image(self, archive: Path) -> None:
        if self.local is None:
            raise ClusterError(
                f"{archive.name} cannot be put on the nodes of KUBECONFIG={self.kubeconfig}: unset"
                " KUBECONFIG to use a cluster of this machine, or one of `make cluster-up`"
            )
        self.local.load_image(archive)


def given_provider(say: Say) -> GivenProvider | None:
    """The provider for $KUBECONFIG, or None when that is not set."""
    value = os.environ.get("KUBECONFIG")
    if not value:
        return None
    path = Path(value)
    if not path.is_file():
        raise ClusterError(f"KUBECONFIG={value}: no such file (a list of files is not supported)")
    for record in known_clusters():
        local = LocalProvider(record.name, len(record.nodes), record.gpus_per_node, say)
        if local.folder.kubeconfig == path.absolute():
            return GivenProvider(path, local, say)
    return GivenProvider(path, None, say)
