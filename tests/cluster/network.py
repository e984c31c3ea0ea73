"""The addresses of one cluster, derived from its slot. Pure but for reading the machine's routes.

10.N.0.0/24       nodes: .1 is node1 (and the control plane), .2 node2, .254 this machine
10.N.1.0/24 ...   pods of node1, node2
10.N.128.0/20     Services; .128.1 is `kubernetes`
                  N = 180 + slot
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import ClusterError
from tests.cluster.run import run

FIRST_OCTET = 180
NUM_SLOTS = 64


@dataclass(frozen=True)
class Network:
    """The subnets and names of the cluster in `slot`."""

    slot: int

    @property
    def _prefix(self) -> str:
        return f"10.{FIRST_OCTET + self.slot}"

    @property
    def whole(self) -> str:
        return f"{self._prefix}.0.0/16"

    @property
    def service_cidr(self) -> str:
        return f"{self._prefix}.128.0/20"

    @property
    def service_ip(self) -> str:
        return f"{self._prefix}.128.1"

    @property
    def host_ip(self) -> str:
        return f"{self._prefix}.0.254"

    @property
    def host_interface(self) -> str:
        return f"octavo{self.slot}"

    @property
    def dns_ip(self) -> str:
        return self.node_ip(0)

    def node_ip(self, node_idx: int) -> str:
        return f"{self._prefix}.0.{node_idx + 1}"

    def pod_cidr(self, node_idx: int) -> str:
        return f"{self._prefix}.{node_idx + 1}.0/24"


def free_slot(taken: Iterable[int]) -> int:
    """The lowest slot that no other cluster has and whose addresses this machine routes nowhere."""
    used = set(taken)
    routed = _routed_networks()
    for slot in range(NUM_SLOTS):
        block = ipaddress.IPv4Network(Network(slot).whole)
        if slot not in used and not any(block.overlaps(network) for network in routed):
            return slot
    raise ClusterError(
        f"none of the {NUM_SLOTS} address blocks 10.{FIRST_OCTET}.0.0/16 ... is free"
    )


def _routed_networks() -> list[ipaddress.IPv4Network]:
    routes = json.loads(run(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]")
    specific = (route["dst"] for route in routes if route["dst"] != "default")
    return [ipaddress.IPv4Network(destination, strict=False) for destination in specific]


def namespace_of(pid: int) -> list[str]:
    """Words before a command that runs in the namespaces of a node with this outermost process."""
    namespaces = Path(f"/proc/{pid}/ns")
    return [
        *inside_network(pid),
        f"--mount={namespaces / 'mnt'}",
        f"--pid={namespaces / 'pid_for_children'}",
    ]


def inside_network(pid: int) -> list[str]:
    """The same for its network alone: pids in the command are this machine's."""
    return ["nsenter", f"--net=/proc/{pid}/ns/net"]
