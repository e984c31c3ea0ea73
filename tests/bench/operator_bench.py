"""500 services on a real API server: how long the operator takes, what it asks, what it holds.

    python -m tests.bench.operator_bench [--services N] [--idle-s SECONDS] [--output FILE]

A control plane alone, no kubelet: pods stay pending. The operator runs as a process with just the
chart's ClusterRole; its calls are counted in the API server's audit log, everything included
(Lease, watches, listings). While idle it lists everything anew each minute, ten times as often as
by default. Prints a table and writes JSON. Run it alone on the machine.
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.cluster import audit
from tests.cluster.local import LocalProvider
from tests.cluster.provider import ClusterInfo
from tests.cluster.testing import Kubectl
from tests.operator.cluster_operator import OperatorProcess, roles, service

CLUSTER = "bench-operator"
SYSTEM = "octavo-system"
ACCOUNT = "octavo-operator"
RESYNC_S = 60.0
RESULTS = Path(__file__).parent / "results" / "operator.json"
CRD = Path(__file__).parents[2] / "crds" / "inferenceservices.yaml"
GOALS = {"idle_calls_per_service_and_hour": 10.0, "rss_mib": 250.0}


@dataclass(frozen=True)
class Measured:
    num_services: int
    converge_s: float
    """From the first creation until all children and statuses are there."""
    restart_s: float
    """From the start of a new process until it has reconciled all, writing nothing."""
    restart_num_writes: int
    reconcile_p50_ms: float
    reconcile_p99_ms: float
    """Of all reconciles up to the convergence, by the buckets of the operator's histogram."""
    calls_per_service_to_converge: float
    idle_calls_per_service_and_hour: float
    idle_calls: dict[str, int]
    """Verb and resource -> how often within the idle time."""
    idle_cpu_share: float
    rss_mib: float
    rss_peak_mib: float
    writes_after_one_change: list[str]


class Bench:
    def __init__(self, cluster: ClusterInfo, folder: Path, num_services: int) -> None:
        assert cluster.audit_log is not None
        self._audit_log = cluster.audit_log
        self._num_services = num_services
        self._team = Kubectl(cluster, "team")
        system = Kubectl(cluster, SYSTEM)
        for kubectl in (self._team, system):
            kubectl("create", "namespace", kubectl.namespace)
        system("apply", "--server-side", f"--filename={CRD}")
        system("wait", "--for=condition=Established", "--timeout=60s", f"--filename={CRD}")
        system.apply(*roles(cluster, SYSTEM, cluster_wide=True))
        self._operator = OperatorProcess(cluster, system, folder, "operator")

    def run(self, idle_s: float) -> Measured:
        self._start()
        begun_s = time.monotonic()
        self._create()
        self._wait("all converged", self._is_converged)
        converge_s = time.monotonic() - begun_s
        p50_ms, p99_ms = (1000 * self._quantile(share) for share in (0.5, 0.99))
        calls = len(self._calls())
        _say(f"converged after {converge_s:.0f} s")
        idle = self._idle(idle_s)
        self._operator.stop()
        restart_s, num_writes = self._restart()
        return Measured(
            num_services=self._num_services,
            converge_s=round(converge_s, 1),
            restart_s=round(restart_s, 1),
            restart_num_writes=num_writes,
            reconcile_p50_ms=round(p50_ms, 1),
            reconcile_p99_ms=round(p99_ms, 1),
            calls_per_service_to_converge=round(calls / self._num_services, 1),
            writes_after_one_change=self._change_one(),
            **idle,
        )

    def stop(self) -> None:
        self._operator.kill()

    def _start(self) -> None:
        self._operator.start(watchNamespaces=[], resyncSeconds=RESYNC_S)

    def _create(self) -> None:
        items = [service(f"chat-{idx}") for idx in range(self._num_services)]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        # kubectl itself holds back to 50 calls a second.
        self._team("create", "--filename=-", stdin=text)

    def _is_converged(self) -> bool:
        services = self._team.get("osvc")["items"]
        told = [s for s in services if _is_told(s)]
        deployments = self._team.get("deployments")["items"]
        return len(told) == len(deployments) == self._num_services

    def _idle(self, idle_s: float) -> dict[str, Any]:
        self._wait("at rest", lambda: self._num_writes_within(20.0) == 0)
        before, cpu_before_s = len(self._calls()), self._operator.cpu_s()
        _say(f"idle for {idle_s:.0f} s")
        time.sleep(idle_s)
        calls = self._calls()[before:]
        hours = idle_s / 3600
        return {
            "idle_calls_per_service_and_hour": round(len(calls) / hours / self._num_services, 2),
            "idle_calls": dict(Counter(f"{call.verb} {call.resource}" for call in calls)),
            "idle_cpu_share": round((self._operator.cpu_s() - cpu_before_s) / idle_s, 3),
            "rss_mib": self._operator.memory_mib("VmRSS"),
            "rss_peak_mib": self._operator.memory_mib("VmHWM"),
        }

    def _restart(self) -> tuple[float, int]:
        before = len(self._writes())
        begun_s = time.monotonic()
        self._start()
        count = "octavo_operator_reconcile_duration_seconds_count"
        self._wait(
            "all reconciled",
            lambda: sum(self._operator.samples(count).values()) >= self._num_services,
        )
        return time.monotonic() - begun_s, len(self._writes()) - before

    def _change_one(self) -> list[str]:
        """All are applied again, one of them with another number of sequences."""
        self._wait("at rest", lambda: self._num_writes_within(20.0) == 0)
        before = len(self._writes())
        changed = service("chat-7", engine={"maxNumSeqs": 3})
        items = [service(f"chat-{idx}") for idx in range(self._num_services) if idx != 7]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": [changed, *items]})
        self._team("apply", "--server-side", "--force-conflicts", "--filename=-", stdin=text)
        self._wait("applied", lambda: len(self._writes()) > before)
        self._wait("at rest", lambda: self._num_writes_within(20.0) == 0)
        return sorted(
            f"{call.verb} {call.resource} {call.name.partition('.')[0]}"
            for call in self._writes()[before:]
        )

    def _calls(self) -> list[audit.Call]:
        return audit.calls_in_order(self._audit_log, SYSTEM, ACCOUNT)

    def _writes(self) -> list[audit.Call]:
        reading = ("get", "list", "watch")
        return [c for c in self._calls() if c.verb not in reading and c.resource != "leases"]

    def _num_writes_within(self, seconds: float) -> int:
        before = len(self._writes())
        time.sleep(seconds)
        return len(self._writes()) - before

    def _quantile(self, share: float) -> float:
        """Seconds; within a bucket taken as evenly spread."""
        buckets: Counter[float] = Counter()
        name = "octavo_operator_reconcile_duration_seconds_bucket"
        for labels, value in self._operator.samples(name).items():
            buckets[float(dict(labels)["le"])] += int(value)
        rank = share * max(buckets.values())
        below, num_below = 0.0, 0
        for bound, number in sorted(buckets.items()):
            if number >= rank:
                part = (rank - num_below) / max(number - num_below, 1)
                return below + part * (min(bound, 60.0) - below)
            below, num_below = bound, number
        return below

    @staticmethod
    def _wait(what: str, holds: Any, timeout_s: float = 900) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline_s:
                raise SystemExit(f"not so after {timeout_s:.0f} s: {what}")
            time.sleep(1)


def _is_told(found: dict[str, Any]) -> bool:
    observed = found.get("status", {}).get("observedGeneration")
    return bool(observed == found["metadata"]["generation"])


def table(measured: Measured) -> Table:
    made = Table("what", "measured", "goal", title=f"{measured.num_services} services")
    for name, value in asdict(measured).items():
        if isinstance(value, dict):
            value = ", ".join(f"{number} {call}" for call, number in value.items())
        elif isinstance(value, list):
            value = "\n".join(value)
        goal = GOALS.get(name)
        made.add_row(name, str(value), "" if goal is None else f"below {goal:g}")
    return made


@contextmanager
def control_plane() -> Iterator[ClusterInfo]:
    provider = LocalProvider(CLUSTER, num_nodes=0, gpus_per_node=0, say=_say)
    provider.down()
    try:
        yield provider.up()
    finally:
        provider.down()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--services", type=int, default=500)
    parser.add_argument("--idle-s", type=float, default=180)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with control_plane() as cluster, tempfile.TemporaryDirectory() as folder:
        bench = Bench(cluster, Path(folder), arguments.services)
        try:
            measured = bench.run(arguments.idle_s)
        finally:
            bench.stop()
    arguments.output.write_text(json.dumps(asdict(measured), indent=2) + "\n")
    Console(width=110).print(table(measured))
    missed = [name for name, goal in GOALS.items() if asdict(measured)[name] >= goal]
    if missed:
        sys.exit(f"goals missed: {', '.join(missed)}")


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


if __name__ == "__main__":
    main()
