"""How many replicas a load needs. Pure: numbers in, a decision with its terms out.

The load is taken as a whole: requests that run or wait anywhere, and KV cache held anywhere. Both
are (but for caches shared by prefix) the same however many replicas bear them, so replicas on order
cannot cause further orders, and a constant load has one answer. There are more replicas at once,
fewer only after a window. Knows nothing of pods, of how samples come, or of Kubernetes.
"""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

_KEEP_SHARE_OF_KV_TARGET = 0.9
"""Fewer replicas are taken only where the KV caches would stay this far below the target."""


class ScaleReason(StrEnum):
    """The closed list of reasons for a number of replicas."""

    PENDING_REQUESTS = "PendingRequests"
    KV_CACHE_USE = "KVCacheUse"
    LOW_DEMAND = "LowDemand"
    STEADY = "Steady"
    STABILIZING = "Stabilizing"
    MAX_REPLICAS = "MaxReplicas"
    MIN_REPLICAS = "MinReplicas"
    SAMPLES_MISSING = "SamplesMissing"
    NO_READY_REPLICAS = "NoReadyReplicas"


@dataclass(frozen=True)
class Policy:
    min_replicas: int
    max_replicas: int
    pending_per_replica: int
    kv_use: float
    """Target share of the KV cache, above 0 and at most 1."""
    window: timedelta


@dataclass(frozen=True)
class ReplicaLoad:
    """What one replica bears."""

    num_pending: int
    num_running: int
    kv_use: float
    """Share of its KV cache that requests hold, 0 to 1."""
    max_running: int


@dataclass(frozen=True)
class Window:
    """How long fewer replicas have been enough."""

    since: datetime
    peak: int
    """The most that were needed within it."""


@dataclass(frozen=True)
class LoadSnapshot:
    replicas: int | None
    """Decided before; None where nothing was."""
    loads: tuple[ReplicaLoad, ...]
    """Of the ready replicas with a fresh sample."""
    num_unread: int = 0
    """Ready replicas without one: their load is not known, which is not to say that it is 0."""
    window: Window | None = None


@dataclass(frozen=True)
class Terms:
    """Replicas that each target asks for, before the bounds."""

    pending_requests: int
    kv_cache_use: int
    keep: int
    """Below this the load would come near a target again."""
    room: int
    """Requests that one replica can run at once."""

    @property
    def grow(self) -> int:
        return max(self.pending_requests, self.kv_cache_use)


@dataclass(frozen=True)
class Decision:
    replicas: int
    reason: ScaleReason
    message: str
    terms: Terms | None
    """None where no replica could be read."""
    window: Window | None = None


def decide(policy: Policy, snapshot: LoadSnapshot, now: datetime) -> Decision:
    """Within the policy's bounds always; `now` is used for the window alone."""
    held = policy.min_replicas if snapshot.replicas is None else snapshot.replicas
    current = _bounded(policy, held)
    if not snapshot.loads:
        return _blind(current, snapshot.num_unread)
    terms = _terms(policy, snapshot.loads)
    if _bounded(policy, terms.grow) > current:
        return _grown(policy, current, terms)
    if current != held:
        return _moved_into_bounds(policy, held, current, terms)
    if terms.grow > policy.max_replicas:
        message = f"the load asks for {terms.grow} replicas, maxReplicas is {policy.max_replicas}"
        return Decision(current, ScaleReason.MAX_REPLICAS, message, terms)
    keep = _bounded(policy, terms.keep)
    if keep >= current:
        return _steady(policy, current, terms)
    if snapshot.num_unread:
        message = (
            f"{snapshot.num_unread} of {snapshot.num_unread + len(snapshot.loads)} ready replicas "
            f"could not be read, so there are not fewer than {current}"
        )
        return Decision(current, ScaleReason.SAMPLES_MISSING, message, terms)
    return _shrunk_or_waiting(policy, current, keep, snapshot.window, terms, now)


def _terms(policy: Policy, loads: tuple[ReplicaLoad, ...]) -> Terms:
    running = sum(load.num_running for load in loads)
    demand = running + sum(load.num_pending for load in loads)
    kv_use = sum(load.kv_use for load in loads)
    room = min(load.max_running for load in loads)
    if running and kv_use:
        # Where the KV cache is full before the places are, it says how many requests fit.
        room = math.floor(min(room, running / kv_use))
    room = max(room, 1)
    return Terms(
        pending_requests=math.ceil(demand / (room + policy.pending_per_replica)),
        kv_cache_use=_ceil(kv_use / policy.kv_use),
        keep=max(
            math.ceil(demand / room),
            _ceil(kv_use / (policy.kv_use * _KEEP_SHARE_OF_KV_TARGET)),
        ),
        room=room,
    )


def _blind(current: int, num_unread: int) -> Decision:
    if num_unread:
        message = f"none of {num_unread} ready replicas could be read, so {current} stay"
        return Decision(current, ScaleReason.SAMPLES_MISSING, message, None)
    message = f"no replica is ready yet; {current} are wanted"
    return Decision(current, ScaleReason.NO_READY_REPLICAS, message, None)


def _grown(policy: Policy, current: int, terms: Terms) -> Decision:
    replicas = _bounded(policy, terms.grow)
    if terms.pending_requests >= terms.kv_cache_use:
        reason, what = ScaleReason.PENDING_REQUESTS, "requests that wait"
    else:
        reason, what = ScaleReason.KV_CACHE_USE, "use of the KV caches"
    bound = f", maxReplicas is {policy.max_replicas}" if terms.grow > replicas else ""
    message = f"from {current} to {replicas}: {what} ask for {terms.grow}{bound}"
    return Decision(replicas, reason, message, terms)


def _moved_into_bounds(policy: Policy, held: int, current: int, terms: Terms) -> Decision:
    if current > held:
        message = f"from {held} to {current}: minReplicas is {policy.min_replicas}"
        return Decision(current, ScaleReason.MIN_REPLICAS, message, terms)
    message = f"from {held} to {current}: maxReplicas is {policy.max_replicas}"
    return Decision(current, ScaleReason.MAX_REPLICAS, message, terms)


def _steady(policy: Policy, current: int, terms: Terms) -> Decision:
    if max(terms.keep, terms.grow) < current:
        message = f"the load needs {terms.keep}, minReplicas is {policy.min_replicas}"
        return Decision(current, ScaleReason.MIN_REPLICAS, message, terms)
    return Decision(current, ScaleReason.STEADY, f"the load needs {current} replicas", terms)


def _shrunk_or_waiting(
    policy: Policy,
    current: int,
    keep: int,
    window: Window | None,
    terms: Terms,
    now: datetime,
) -> Decision:
    if window is None:
        window = Window(now, keep)
    else:
        # The bounds, or the number itself, may be others than when the window began.
        peak = max(min(_bounded(policy, window.peak), current), keep)
        window = Window(window.since, peak)
    if now - window.since >= policy.window:
        message = (
            f"from {current} to {window.peak}: no more were needed for "
            f"{policy.window.total_seconds():.0f} s"
        )
        return Decision(window.peak, ScaleReason.LOW_DEMAND, message, terms)
    message = (
        f"{window.peak} replicas are enough; there are {current} until that has been so for "
        f"{policy.window.total_seconds():.0f} s"
    )
    return Decision(current, ScaleReason.STABILIZING, message, terms, window)


def _bounded(policy: Policy, replicas: int) -> int:
    return max(policy.min_replicas, min(replicas, policy.max_replicas))


def _ceil(value: float) -> int:
    """Up to whole replicas; a sum of shares that is a whole number but for rounding is one."""
    return math.ceil(round(value, 6))
