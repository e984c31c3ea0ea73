"""The kind provider, where a Docker engine runs: the cluster's nodes are containers.

The machine's root is mounted read-only into each node at `NODE_PREFIX`, so that the engine's test
image finds this machine's Python there, and the user's cache of models where services expect it.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import programs
from tests.cluster.addons import gpu_patch
from tests.cluster.node_setup import models_cache
from tests.cluster.programs import Say
from tests.cluster.provider import ClusterInfo
from tests.cluster.run import run
from tests.cluster.state import ClusterFolder, cluster_folder, locked, state_home

NODE_PREFIX = "/octavo-host"


def cluster_config(num_nodes: int) -> dict[str, Any]:
    """kind's configuration: the first node is the control plane, and runs pods when it is alone."""
    mounts = [
        {"hostPath": "/", "containerPath": NODE_PREFIX, "readOnly": True},
        {
            "hostPath": str(models_cache()),
            "containerPath": "/var/lib/octavo/models",
            "readOnly": True,
        },
    ]
    roles = ["control-plane", *["worker"] * (num_nodes - 1)]
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": role, "extraMounts": mounts} for role in roles],
    }


@dataclass(frozen=True)
class KindProvider:
    """A kind cluster called `octavo-NAME`."""

    name: str
    num_nodes: int
    gpus_per_node: int
    say: Say

    @property
    def folder(self) -> ClusterFolder:
        return cluster_folder(self.name)

    @property
    def _kind_name(self) -> str:
        return f"octavo-{self.name}"

    def up(self) -> ClusterInfo:
        found = programs.obtain_clients(say=self.say)
        with locked(state_home() / f"{self.name}.lock"):
            if self._kind_name not in run(["kind", "get", "clusters"]).split():
                self._create()
            self._advertise_gpus(found["kubectl"])
        return ClusterInfo(
            name=self.name,
            provider="kind",
            kubeconfig=self.folder.kubeconfig,
            kubectl=found["kubectl"],
            helm=found["helm"],
            num_nodes=max(1, self.num_nodes),
            reaches_services=False,
            node_prefix=NODE_PREFIX,
        )

    def down(self) -> None:
        with locked(state_home() / f"{self.name}.lock"):
            run(["kind", "delete", "cluster", "--name", self._kind_name])
            if self.folder.path.exists():
                shutil.rmtree(self.folder.path)

    def load_image(self, archive: Path) -> None:
        run(["kind", "load", "image-archive", archive, "--name", self._kind_name])

    def _create(self) -> None:
        self.say(f"creating kind cluster {self._kind_name}")
        self.folder.path.mkdir(parents=True, exist_ok=True)
        models_cache().mkdir(parents=True, exist_ok=True)
        config = json.dumps(cluster_config(self.num_nodes))
        where = ["--name", self._kind_name, "--kubeconfig", str(self.folder.kubeconfig)]
        run(["kind", "create", "cluster", *where, "--config=-", "--wait=120s"], stdin=config)

    def _advertise_gpus(self, kubectl: Path) -> None:
        base = [str(kubectl), f"--kubeconfig={self.folder.kubeconfig}"]
        for node in json.loads(run([*base, "get", "nodes", "--output=json"]))["items"]:
            if patch := gpu_patch(node, self.gpus_per_node):
                name = node["metadata"]["name"]
                words = ["patch", "node", name, "--subresource=status", "--type=json"]
                run([*base, *words, "--patch", json.dumps(patch)])
