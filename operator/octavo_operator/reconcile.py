"""One level-triggered reconcile, the same whatever woke it.

    parse -> observe -> wanted -> diff -> apply -> conditions -> status

Everything but observe, apply and the status patch is a pure function of another module.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

import structlog

from octavo_operator import (
    api,
    children,
    creation_events,
    deadlines,
    evictions,
    facts,
    generations,
    mount_events,
    obsolete,
    plan,
    pod_causes,
    rollouts,
    scale_status,
    startup,
    status,
    transitions,
)
from octavo_operator.api import InferenceService, RolloutSpec
from octavo_operator.cache import ObjectCache, ServiceKey
from octavo_operator.cluster import Cluster
from octavo_operator.config import EngineDefaults, PodMonitorSettings
from octavo_operator.errors import ApiRejected, InvalidService
from octavo_operator.events import EventWriter
from octavo_operator.facts import Problem
from octavo_operator.kinds import INFERENCE_SERVICE, Kind, Manifest, kind_of
from octavo_operator.metrics import Metrics
from octavo_operator.optional_kinds import OptionalKinds
from octavo_operator.reasons import Reason
from octavo_operator.scaling import Autoscaler, Scale
from octavo_operator.snapshot import Snapshot

Outcome = Literal["gone", "unchanged", "applied", "waiting", "rejected", "failed"]
Log = structlog.stdlib.BoundLogger


@dataclass(frozen=True)
class _Carried:
    """How far the spec could be carried out."""

    snapshot: Snapshot
    scale: Scale
    outcome: Outcome
    not_accepted: Problem | None = None
    not_applied: Problem | None = None
    predecessors: tuple[str, ...] = ()
    step: rollouts.Step | None = None


@dataclass(frozen=True)
class Reconciler:
    cluster: Cluster
    cache: ObjectCache
    defaults: EngineDefaults
    metrics: Metrics
    now: Callable[[], datetime]
    autoscaler: Autoscaler
    wake_later: Callable[[ServiceKey, float], None]
    """Asks for another reconcile of a service after so many seconds."""
    events: EventWriter
    surge_patience: timedelta
    """How long a surge may wait for an accelerator."""
    operator_namespace: str
    monitors: PodMonitorSettings
    optional: OptionalKinds
    evicts_faulty: bool = True

    async def reconcile(self, key: ServiceKey) -> Outcome:
        """Raises ApiUnavailable; try again later."""
        body = self.cache.service(key)
        if body is None or body["metadata"].get("deletionTimestamp"):
            self.autoscaler.forget(key)
            self.events.forget(key)
            return "gone"  # the garbage collector removes the children by their owner
        log = structlog.get_logger().bind(
            service=f"{key[0]}/{key[1]}", generation=body["metadata"]["generation"]
        )
        service: InferenceService | None = None
        try:
            service = api.parse(body)
        except InvalidService as error:
            problem = Problem(error.reason, error.message)
            seen = self.cache.snapshot(key)
            own = replace(seen, children=_own(seen, body["metadata"]["uid"]))
            scale = Scale(_fixed_replicas(body))
            carried = _Carried(own, scale, "rejected", not_accepted=problem)
        else:
            carried = await self._carry_out(service, log)
        since = body["metadata"].get("creationTimestamp", "")
        carried = replace(carried, snapshot=carried.snapshot.since(since))
        carried = await self._with_events(key, carried)
        await self._tell(body, service, carried, log)
        if self.evicts_faulty:
            again_s = await evictions.evict_faulty(
                self.cluster, self.events, self.metrics, body, carried.snapshot
            )
            self._look_again(key, again_s)
        return carried.outcome

    async def _carry_out(self, service: InferenceService, log: Log) -> _Carried:
        snapshot = await self._observe(service)
        scale = self.autoscaler.scale(service, snapshot, self.now())
        namespace = self.operator_namespace
        step = rollouts.step(service, snapshot, self.now(), self.surge_patience)
        self._look_again((service.namespace, service.name), step.decided_in_s)
        stepping = rollouts.carried_out(service, step)
        wanted = children.wanted(
            stepping,
            scale.replicas,
            self.defaults,
            namespace,
            self.monitors,
            self._optional(),
            self._seen(service, snapshot, scale.replicas),
        )
        todo = plan.diff(wanted, snapshot, service.uid)
        own = replace(snapshot, children=_own(snapshot, service.uid))
        if todo.foreign:
            return _Carried(own, scale, "rejected", not_accepted=_name_taken(todo.foreign[0]))
        if todo.leaving:
            leaving = tuple(
                f"{child['kind']} {child['metadata']['name']}" for child in todo.leaving
            )
            return _Carried(own, scale, "waiting", predecessors=leaving)
        for item in todo.items:
            try:
                applied = await self.cluster.apply(item.manifest)
            except ApiRejected as error:
                if self.optional.is_refused(kind_of(item.manifest), error):
                    continue
                problem = _not_applied(item.manifest, error)
                return _Carried(own, scale, "rejected", not_applied=problem)
            kind = kind_of(item.manifest)
            log.info("applied", kind=kind.name, cause=item.cause, detail=item.detail)
            self.metrics.applied.labels(kind.name, item.cause).inc()
            self.cache.put(kind, applied)
            own = own.with_child(applied)
        if todo.items:
            return _Carried(own, scale, "applied", step=step)
        for child in obsolete.obsolete(wanted, snapshot, service.uid):
            try:
                await self._remove(child, log)
            except ApiRejected as error:
                return _Carried(own, scale, "rejected", not_applied=_not_removed(child, error))
        return _Carried(own, scale, "unchanged", step=step)

    def _seen(self, service: InferenceService, snapshot: Snapshot, replicas: int) -> children.Seen:
        limits = deadlines.limits(_progress_deadline_s(service))
        now = self.now()
        num_ready = sum(pod_causes.is_ready(pod) for pod in snapshot.pods)
        is_starting = any(deadlines.is_starting(pod, limits, now) for pod in snapshot.pods)
        # A pod that has to go needs a budget that lets it.
        must_go = self.evicts_faulty and evictions.faulty(snapshot) is not None
        protects_start = is_starting and num_ready < replicas and not must_go
        return children.Seen(generations.workload(snapshot), protects_start)

    def _optional(self) -> tuple[Kind, ...]:
        """Of the optional kinds, those that services get."""
        return self.optional.served if self.monitors.install else ()

    async def _remove(self, child: Manifest, log: Log) -> None:
        kind, metadata = kind_of(child), child["metadata"]
        name = metadata["name"]
        await self.cluster.delete(kind, metadata["namespace"], name, metadata["uid"])
        log.info("removed", kind=kind.name, name=name)
        self.metrics.removed.labels(kind.name).inc()

    async def _observe(self, service: InferenceService) -> Snapshot:
        """From the cache; what it lacks is asked for, since a foreign object lacks our labels."""
        snapshot = self.cache.snapshot((service.namespace, service.name))
        for kind, name in children.names(service, self._optional()):
            if snapshot.named(kind, name) is None:
                found = await self.cluster.get(kind, service.namespace, name)
                if found is not None:
                    snapshot = snapshot.with_child(found)
        return snapshot

    async def _with_events(self, key: ServiceKey, carried: _Carried) -> _Carried:
        snapshot, again_s = await mount_events.looked_at(
            self.cluster, key[0], carried.snapshot, self.now()
        )
        self._look_again(key, again_s)
        snapshot, again_s = await creation_events.looked_at(self.cluster, key[0], snapshot)
        self._look_again(key, again_s)
        return replace(carried, snapshot=snapshot)

    def _look_again(self, key: ServiceKey, in_s: float | None) -> None:
        if in_s is not None:
            self.wake_later(key, in_s)

    async def _tell(
        self,
        body: Mapping[str, Any],
        service: InferenceService | None,
        carried: _Carried,
        log: Log,
    ) -> None:
        metadata = body["metadata"]
        limits = deadlines.limits(_progress_deadline_s(service))
        gathered = facts.gather(
            metadata["generation"],
            carried.scale.replicas,
            carried.snapshot,
            now=self.now(),
            limits=limits,
            blocked=None if carried.step is None else carried.step.blocked,
            not_accepted=carried.not_accepted,
            not_applied=carried.not_applied,
            predecessors=carried.predecessors,
        )
        key = (metadata["namespace"], metadata["name"])
        self._look_again(key, deadlines.next_in_s(carried.snapshot.pods, limits, self.now()))
        served_name = None if service is None else service.served_name
        old = body.get("status", {})
        new = status.wanted(body, served_name, gathered, self.now())
        new |= scale_status.parts(old, carried.scale, self.now())
        stages = carried.scale.load.stages
        new |= startup.part(old.get("startup"), carried.snapshot.pods, stages)
        patch = status.merge_patch(old, new)
        if patch is None:
            return
        namespace, name = metadata["namespace"], metadata["name"]
        # A service that was deleted and made again meanwhile must not get the old one's status.
        patch["metadata"] = {"uid": metadata["uid"]}
        try:
            written = await self.cluster.patch_status(INFERENCE_SERVICE, namespace, name, patch)
        except ApiRejected as error:
            if error.status == 404:  # deleted while we looked
                return
            raise
        self.cache.put(INFERENCE_SERVICE, written)
        ready = next(c for c in new["conditions"] if c["type"] == "Ready")
        log.info("status", ready=ready["status"], reason=ready["reason"], message=ready["message"])
        self._account_start(old.get("startup"), new.get("startup"))
        # After the status: were it before, each retry of the write would tell it again.
        moved = transitions.transitions(old.get("conditions", ()), new["conditions"])
        await self.events.tell(body, moved)

    def _account_start(self, old: Mapping[str, Any] | None, new: Manifest | None) -> None:
        if new is None or (old is not None and old["time"] == new["time"]):
            return
        for field, phase in startup.PHASES.items():
            if field in new:
                self.metrics.startup_seconds.labels(phase).observe(new[field])


def _fixed_replicas(body: Mapping[str, Any]) -> int:
    # The schema defaults and checks it, so it can be read even where the rest cannot.
    return int(body.get("spec", {}).get("replicas", 1))


def _progress_deadline_s(service: InferenceService | None) -> int:
    rollout = RolloutSpec() if service is None else service.spec.rollout
    return rollout.progress_deadline_seconds


def _own(snapshot: Snapshot, uid: str) -> dict[str, Manifest]:
    """Without what belongs to others or to a predecessor: the status tells only of our own."""
    return {
        name: child
        for name, child in snapshot.children.items()
        if any(owner["uid"] == uid for owner in child["metadata"].get("ownerReferences", []))
    }


def _names(found: Iterable[Manifest]) -> tuple[str, ...]:
    return tuple(f"{body['kind']} {body['metadata']['name']}" for body in found)


def _name_taken(found: Manifest) -> Problem:
    name = found["metadata"]["name"]
    return Problem(
        Reason.NAME_TAKEN,
        f"{found['kind']} {name!r} exists in this namespace and is not ours; "
        "rename it or the InferenceService",
    )


def _not_removed(child: Manifest, error: ApiRejected) -> Problem:
    what = f"the {child['kind']} {child['metadata']['name']}"
    return Problem(
        Reason.APPLY_REJECTED,
        f"the API server refuses to remove {what}, which is not wanted any more: {error.message}",
    )


def _not_applied(manifest: Manifest, error: ApiRejected) -> Problem:
    return Problem(
        Reason.APPLY_REJECTED,
        f"the API server refuses the {manifest['kind']}: {error.message}",
    )
