"""Writes Events about services: one for each transition, and never a storm of them.

What repeats within `_MERGED_FOR` raises the count of the Event that is there; a service that flaps
gets no more than `_BURST` at once and one in `_REFILL` afterwards. An Event that cannot be written
is logged and counted, and nothing else fails for it. Knows nothing of what conditions mean.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import uuid4

import structlog

from octavo_operator.cache import ServiceKey
from octavo_operator.cluster import Cluster
from octavo_operator.errors import ApiError
from octavo_operator.kinds import EVENT
from octavo_operator.metrics import Metrics
from octavo_operator.transitions import Transition, event, repetition

_MERGED_FOR = timedelta(minutes=10)
_BURST = 20
_REFILL = timedelta(minutes=1)

Outcome = Literal["written", "repeated", "dropped", "failed"]


@dataclass
class _Written:
    name: str
    count: int
    at: datetime


@dataclass
class _Told:
    """What was written about one service."""

    uid: str
    budget: float
    budget_at: datetime
    by_reason: dict[str, _Written] = field(default_factory=dict)


class EventWriter:
    def __init__(self, cluster: Cluster, metrics: Metrics, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._metrics = metrics
        self._now = now
        self._told: dict[ServiceKey, _Told] = {}

    async def tell(self, service: Mapping[str, Any], transitions: tuple[Transition, ...]) -> None:
        """Never raises for what the API server answers."""
        for transition in transitions:
            outcome = await self._tell(service, transition)
            self._metrics.events.labels(transition.type, outcome).inc()

    def forget(self, key: ServiceKey) -> None:
        self._told.pop(key, None)

    async def _tell(self, service: Mapping[str, Any], transition: Transition) -> Outcome:
        told = self._of(service)
        if not self._afford(told):
            return "dropped"
        try:
            return await self._write(service, transition, told)
        except ApiError as error:
            structlog.get_logger().warning(
                "event not written", reason=transition.reason, error=str(error)
            )
            return "failed"

    async def _write(
        self, service: Mapping[str, Any], transition: Transition, told: _Told
    ) -> Outcome:
        now = self._now()
        namespace, name = service["metadata"]["namespace"], service["metadata"]["name"]
        written = told.by_reason.get(transition.reason)
        if written is not None and now - written.at < _MERGED_FOR:
            patch = repetition(transition, written.count + 1, now)
            if await self._cluster.patch(EVENT, namespace, written.name, patch) is not None:
                told.by_reason[transition.reason] = _Written(written.name, written.count + 1, now)
                return "repeated"
        made = event(service, transition, f"{name}.{uuid4().hex[:16]}", now)
        await self._cluster.create(EVENT, made)
        told.by_reason[transition.reason] = _Written(made["metadata"]["name"], 1, now)
        return "written"

    def _of(self, service: Mapping[str, Any]) -> _Told:
        """A service that was deleted and made again is another one."""
        metadata = service["metadata"]
        key = (metadata["namespace"], metadata["name"])
        told = self._told.get(key)
        if told is None or told.uid != metadata["uid"]:
            told = self._told[key] = _Told(metadata["uid"], _BURST, self._now())
        return told

    def _afford(self, told: _Told) -> bool:
        now = self._now()
        told.budget = min(float(_BURST), told.budget + (now - told.budget_at) / _REFILL)
        told.budget_at = now
        if told.budget < 1:
            return False
        told.budget -= 1
        return True
