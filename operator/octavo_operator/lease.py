"""One active operator: a coordination.k8s.io Lease of our own, taken before anything is written.

The holder renews it. When it cannot in time (the API server is away), it rests until it can again;
when it finds that another has taken the Lease meanwhile, it ends. Clocks of different machines are
never compared: another's Lease is dead when it has not changed for its duration on our own clock.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import structlog

from octavo_operator.cluster import Cluster
from octavo_operator.config import LeaseSettings
from octavo_operator.errors import ApiError, LeaseLost
from octavo_operator.kinds import LEASE, Manifest

_NOT_AS_WRITTEN = frozenset({404, 409})
"""What a renewal is answered with when the Lease has gone, or has been changed."""


@dataclass(frozen=True)
class _Seen:
    version: str
    at_s: float
    """Monotonic; when this version was first seen."""


class LeaderLease:
    def __init__(
        self, cluster: Cluster, settings: LeaseSettings, namespace: str, identity: str
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._namespace = namespace
        self._identity = identity
        self._seen: _Seen | None = None
        self._written: Manifest | None = None
        """The Lease as our last write left it, if that went well."""
        self._last_contact_s = time.monotonic()
        self._fresh = asyncio.Event()

    async def until_fresh(self) -> None:
        """Returns at once while the Lease is held for sure; to be awaited before writing."""
        await self._fresh.wait()

    @property
    def contact_age_s(self) -> float:
        """Seconds since the API server last answered about the Lease."""
        return time.monotonic() - self._last_contact_s

    async def acquire(self) -> None:
        """Returns when this process is the one active operator."""
        log = structlog.get_logger()
        while True:
            try:
                if await self._try():
                    self._fresh.set()
                    log.info("lease acquired", identity=self._identity)
                    return
            except ApiError as error:
                log.warning("lease not acquired", error=str(error))
            await asyncio.sleep(self._settings.retry_seconds)

    async def hold(self, after_rest: Callable[[], None]) -> None:
        """Renews for ever; raises LeaseLost when another holds it.

        `after_rest` is called when the Lease could not be renewed in time and is again.
        """
        log = structlog.get_logger()
        renewed_s = time.monotonic()
        while True:
            await asyncio.sleep(self._settings.retry_seconds)
            left_s = self._rest_when_stale(renewed_s)
            try:
                async with asyncio.timeout(max(left_s, self._settings.retry_seconds)):
                    is_ours = await self._try()
            except (ApiError, TimeoutError) as error:
                log.warning("lease not renewed", error=str(error) or "no answer in time")
                self._rest_when_stale(renewed_s)
                continue
            if not is_ours:
                raise LeaseLost("another operator holds the Lease")
            renewed_s = time.monotonic()
            if not self._fresh.is_set():
                self._fresh.set()
                log.info("lease renewed again")
                after_rest()

    def _rest_when_stale(self, renewed_s: float) -> float:
        """Seconds until the renewal must have come; below 0 the holder rests."""
        left_s = renewed_s + self._settings.renew_deadline_seconds - time.monotonic()
        if left_s <= 0 and self._fresh.is_set():
            self._fresh.clear()
            structlog.get_logger().warning("lease not renewed in time: resting until it is")
        return left_s

    async def release(self) -> None:
        """Lets a standby take over at once. Raises ApiError."""
        lease = await self._cluster.get(LEASE, self._namespace, self._settings.name)
        if lease is None or _holder(lease) != self._identity:
            return
        lease["spec"] = {**lease["spec"], "holderIdentity": "", "renewTime": _micro_time()}
        await self._cluster.replace(LEASE, lease)

    async def _try(self) -> bool:
        """Whether the Lease is ours now; False while another holds it. Raises ApiError."""
        if await self._is_renewed():
            return True
        lease = await self._cluster.get(LEASE, self._namespace, self._settings.name)
        self._last_contact_s = time.monotonic()
        if lease is None:
            self._written = await self._cluster.create(LEASE, self._new())
            return True
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen.version != version:
            self._seen = _Seen(version, time.monotonic())
        if _holder(lease) not in ("", self._identity) and not self._is_dead(lease, self._seen):
            return False
        # Refused with 409 when another was faster: looked at anew with the next attempt.
        self._written = await self._cluster.replace(LEASE, self._taken(lease))
        return True

    async def _is_renewed(self) -> bool:
        """By one call, as it was after our last write; False where somebody wrote it since."""
        lease, self._written = self._written, None
        if lease is None:
            return False
        try:
            self._written = await self._cluster.replace(LEASE, self._taken(lease))
        except ApiError as error:
            if error.status in _NOT_AS_WRITTEN:
                return False
            raise
        self._last_contact_s = time.monotonic()
        return True

    def _is_dead(self, lease: Manifest, seen: _Seen) -> bool:
        duration_s = lease["spec"].get("leaseDurationSeconds", self._settings.duration_seconds)
        return time.monotonic() - seen.at_s > float(duration_s)

    def _new(self) -> Manifest:
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.name,
            "metadata": {"name": self._settings.name, "namespace": self._namespace},
            "spec": self._spec(transitions=0, since=_micro_time()),
        }

    def _taken(self, lease: Manifest) -> Manifest:
        old = lease["spec"]
        is_ours = _holder(lease) == self._identity
        transitions = old.get("leaseTransitions", 0) + (0 if is_ours else 1)
        since = old.get("acquireTime") if is_ours else None
        return {**lease, "spec": self._spec(transitions, since or _micro_time())}

    def _spec(self, transitions: int, since: str) -> Manifest:
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": self._settings.duration_seconds,
            "acquireTime": since,
            "renewTime": _micro_time(),
            "leaseTransitions": transitions,
        }


def _holder(lease: Manifest) -> str:
    return lease.get("spec", {}).get("holderIdentity") or ""


def _micro_time() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
