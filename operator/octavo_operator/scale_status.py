"""What the status tells of load and of the number of replicas, and how often. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from octavo_operator.autoscale import Decision, ScaleReason
from octavo_operator.conditions import timestamp
from octavo_operator.kinds import Manifest
from octavo_operator.samples import ServiceLoad
from octavo_operator.scaling import Scale

TELL_EVERY = timedelta(seconds=30)
"""Load moves with every request; the status follows it at this pace."""


def parts(old: Mapping[str, Any], scale: Scale, now: datetime) -> Manifest:
    """The status's `load` and `autoscaling`, each only where there is something to tell."""
    told: Manifest = {}
    if scale.load.loads:
        told["load"] = _paced(old.get("load"), {"time": timestamp(now), **_load(scale.load)}, now)
    if scale.decision is not None:
        new = _decision(scale.decision, scale.load, now)
        before = old.get("autoscaling")
        told["autoscaling"] = new if _is_news(before, new) else _paced(before, new, now)
    return told


def _load(load: ServiceLoad) -> Manifest:
    return {
        "readReplicas": len(load.loads),
        "pendingRequests": sum(one.num_pending for one in load.loads),
        "runningRequests": sum(one.num_running for one in load.loads),
        "kvCacheUsePercent": round(
            100 * sum(one.kv_use for one in load.loads) / max(len(load.loads), 1)
        ),
    }


def _decision(decision: Decision, load: ServiceLoad, now: datetime) -> Manifest:
    told: Manifest = {
        "time": timestamp(now),
        "replicas": decision.replicas,
        "reason": decision.reason.value,
        "message": decision.message,
        "inputs": {"readReplicas": len(load.loads), "unreadReplicas": load.num_unread},
    }
    if decision.terms is not None:
        told["inputs"] |= {**_load(load), "roomPerReplica": decision.terms.room}
        told["terms"] = {
            "pendingRequests": decision.terms.pending_requests,
            "kvCacheUse": decision.terms.kv_cache_use,
            "keep": decision.terms.keep,
        }
    if decision.window is not None:
        told["lowerSince"] = timestamp(decision.window.since)
    return told


def _is_news(old: Mapping[str, Any] | None, new: Manifest) -> bool:
    """Another number, or that samples have begun or ceased to be missing."""
    if old is None or old["replicas"] != new["replicas"]:
        return True
    reasons = {old["reason"], new["reason"]}
    return len(reasons) == 2 and ScaleReason.SAMPLES_MISSING in reasons


def _paced(old: Mapping[str, Any] | None, new: Manifest, now: datetime) -> Manifest:
    """The old part while it says the same but for its time, or was told a moment ago."""
    if old is None:
        return new
    says_the_same = {**old, "time": ""} == {**new, "time": ""}
    is_recent = now - datetime.fromisoformat(old["time"]) < TELL_EVERY
    return dict(old) if says_the_same or is_recent else new
