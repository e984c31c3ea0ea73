"""How replicas of one template give way to those of the next. Pure.

A surge adds a new replica before an old one leaves, and so needs an accelerator more than the
service holds. Where none is to be had, the new replica waits for the old one and the old one for
the new one: strategy auto then takes one old replica away before its successor starts. That it has
come to this is read from the Deployment itself, so it outlives the operator's process.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from octavo_operator import generations, pod_causes
from octavo_operator.api import InferenceService
from octavo_operator.facts import rollout
from octavo_operator.kinds import DEPLOYMENT, Manifest
from octavo_operator.reasons import Reason
from octavo_operator.snapshot import Snapshot


@dataclass(frozen=True)
class Step:
    """What the rollout of this moment needs."""

    takes_first: bool
    """One old replica leaves before its successor starts."""
    blocked: str | None = None
    """Why a surge is impossible, as a sentence; told as long as it shapes the rollout."""
    decided_in_s: float | None = None
    """Seconds until a surge that finds no room is given up, unless it finds some."""


_SURGE = Step(takes_first=False)


def step(service: InferenceService, snapshot: Snapshot, now: datetime, patience: timedelta) -> Step:
    """`patience`: how long a surge may wait for an accelerator, as for a node that is added."""
    strategy = service.spec.rollout.strategy
    if strategy == "recreate" or service.replica_claim is not None:
        return Step(takes_first=True)  # a replica's claim is free only when it has left
    if not _holds_accelerators(service, snapshot):
        return _SURGE
    block = _block(service, snapshot)
    if strategy == "surge":
        told = None if block is None else f"{block.sentence}, and strategy is surge"
        return Step(takes_first=False, blocked=told)
    if _takes_first_already(snapshot):
        sentence = block.sentence if block else _no_spare(service)
        return Step(takes_first=True, blocked=f"{sentence}: replicas are replaced one by one")
    if block is None:
        return _SURGE
    left_s = (block.since + patience - now).total_seconds()
    if left_s <= 0 or not _serves(snapshot):
        return Step(takes_first=True, blocked=f"{block.sentence}: replicas are replaced one by one")
    limit_s = f"{patience.total_seconds():.0f} s"
    waits = f"{block.sentence}: an old replica is taken first if that lasts for {limit_s}"
    return Step(takes_first=False, blocked=waits, decided_in_s=left_s)


def carried_out(service: InferenceService, step: Step) -> InferenceService:
    """The service with the strategy that this moment asks for in place of auto."""
    if not step.takes_first or service.spec.rollout.strategy == "recreate":
        return service
    changed = service.spec.rollout.model_copy(update={"strategy": "recreate"})
    return replace(service, spec=service.spec.model_copy(update={"rollout": changed}))


@dataclass(frozen=True)
class _Block:
    sentence: str
    since: datetime


def _block(service: InferenceService, snapshot: Snapshot) -> _Block | None:
    resource = service.spec.accelerator.resource_name
    for pod in generations.newest_pods(snapshot):
        cause = pod_causes.cause(pod)
        if cause is None or cause.reason is not Reason.UNSCHEDULABLE:
            continue
        if f"Insufficient {resource}" in cause.sentence:
            since = pod_causes.condition(pod, "PodScheduled")["lastTransitionTime"]
            sentence = f"{_no_spare(service)}: pod {cause.pod} waits for one that an old pod holds"
            return _Block(sentence, datetime.fromisoformat(since))
    return _quota_block(service, snapshot)


def _quota_block(service: InferenceService, snapshot: Snapshot) -> _Block | None:
    deployment = snapshot.child(DEPLOYMENT)
    refusal = rollout(deployment).creation_failure
    resource = service.spec.accelerator.resource_name
    if deployment is None or refusal is None or "exceeded quota" not in refusal:
        return None
    if f"requests.{resource}" not in refusal:
        return None
    failure = pod_causes.condition(deployment, "ReplicaFailure")
    sentence = f"the namespace's quota leaves no {resource} for a surge: {refusal}"
    return _Block(sentence, datetime.fromisoformat(failure["lastTransitionTime"]))


def _no_spare(service: InferenceService) -> str:
    return f"no node has a spare {service.spec.accelerator.resource_name} for a surge"


def _holds_accelerators(service: InferenceService, snapshot: Snapshot) -> bool:
    """Whether earlier pods, also those that leave, hold what the newest need."""
    is_placed = any(_is_placed(pod) for pod in generations.earlier_pods(snapshot))
    return service.accelerator_count > 0 and is_placed


def _is_placed(pod: Manifest) -> bool:
    is_over = pod.get("status", {}).get("phase") in ("Failed", "Succeeded")
    return bool(pod.get("spec", {}).get("nodeName")) and not is_over


def _takes_first_already(snapshot: Snapshot) -> bool:
    deployment = snapshot.child(DEPLOYMENT)
    if deployment is None:
        return False
    steps = deployment["spec"].get("strategy", {}).get("rollingUpdate", {})
    return bool(steps.get("maxSurge") == 0)


def _serves(snapshot: Snapshot) -> bool:
    return any(pod_causes.is_ready(pod) for pod in generations.earlier_pods(snapshot))
