"""How many replicas a service gets: spec.replicas, or the decision about its load.

Holds what was decided last and the window that runs, in memory: the number itself lives in
the Deployment or StatefulSet, from where a new process takes it, and a window that begins anew only
delays fewer replicas. Knows nothing of how samples come or of what is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from octavo_operator import autoscale, generations
from octavo_operator.api import AutoscalingSpec, InferenceService
from octavo_operator.autoscale import Decision, LoadSnapshot, Policy, Window
from octavo_operator.cache import ServiceKey
from octavo_operator.metrics import Metrics
from octavo_operator.samples import ServiceLoad
from octavo_operator.snapshot import Snapshot


@dataclass(frozen=True)
class Scale:
    """The number of replicas of one service, and what is to be told about it."""

    replicas: int
    load: ServiceLoad = field(default_factory=ServiceLoad)
    decision: Decision | None = None
    """None where spec.replicas says it."""


@dataclass(frozen=True)
class _Memory:
    uid: str
    replicas: int
    window: Window | None


class Autoscaler:
    def __init__(self, load: Callable[[Snapshot], ServiceLoad], metrics: Metrics) -> None:
        self._load = load
        self._metrics = metrics
        self._memory: dict[ServiceKey, _Memory] = {}

    def scale(self, service: InferenceService, snapshot: Snapshot, now: datetime) -> Scale:
        key = (service.namespace, service.name)
        load = self._load(snapshot)
        if service.spec.autoscaling is None:
            self.forget(key)
            return Scale(service.spec.replicas, load)
        memory = self._memory.get(key)
        if memory is not None and memory.uid != service.uid:
            memory = None  # of a deleted service with the same name
        known = LoadSnapshot(
            replicas=_deployed(snapshot) if memory is None else memory.replicas,
            loads=load.loads,
            num_unread=load.num_unread,
            window=None if memory is None else memory.window,
        )
        decision = autoscale.decide(_policy(service.spec.autoscaling), known, now)
        self._memory[key] = _Memory(service.uid, decision.replicas, decision.window)
        self._account(key, known.replicas, decision)
        return Scale(decision.replicas, load, decision)

    def waits_for_time(self, key: ServiceKey) -> bool:
        """Whether a decision may change without any change of the load."""
        memory = self._memory.get(key)
        return memory is not None and memory.window is not None

    def forget(self, key: ServiceKey) -> None:
        """The service is gone, or others say how many replicas it has."""
        if self._memory.pop(key, None) is not None:
            self._metrics.forget_autoscaling(*key)

    def _account(self, key: ServiceKey, before: int | None, decision: Decision) -> None:
        self._metrics.tell_autoscaling(*key, _values(decision))
        if before is None or before == decision.replicas:
            return
        direction = "up" if decision.replicas > before else "down"
        self._metrics.scalings.labels(direction, decision.reason).inc()
        structlog.get_logger().info(
            "scaled",
            service="/".join(key),
            before=before,
            replicas=decision.replicas,
            reason=decision.reason,
            message=decision.message,
        )


def _values(decision: Decision) -> dict[str, float]:
    values: dict[str, float] = {"replicas": decision.replicas}
    if decision.terms is not None:
        values["pending_requests_term"] = decision.terms.pending_requests
        values["kv_cache_use_term"] = decision.terms.kv_cache_use
        values["keep_term"] = decision.terms.keep
        values["room_per_replica"] = decision.terms.room
    return values


def _policy(spec: AutoscalingSpec) -> Policy:
    return Policy(
        min_replicas=spec.min_replicas,
        max_replicas=spec.max_replicas,
        pending_per_replica=spec.targets.pending_requests_per_replica,
        kv_use=spec.targets.kv_cache_use_percent / 100,
        window=timedelta(seconds=spec.scale_down_stabilization_seconds),
    )


def _deployed(snapshot: Snapshot) -> int | None:
    found = generations.workload(snapshot)
    return None if found is None else int(found["spec"]["replicas"])
