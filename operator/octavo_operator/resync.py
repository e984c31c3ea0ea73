"""The full listing: at the start, at intervals, and after watches had a gap.

Watches tell of changes; only a listing tells of what they have missed.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

import structlog

from octavo_operator.cache import ObjectCache, ServiceKey
from octavo_operator.cluster import Cluster
from octavo_operator.errors import ApiError
from octavo_operator.kinds import INFERENCE_SERVICE, MANAGED_SELECTOR, WATCHED_KINDS
from octavo_operator.metrics import Metrics
from octavo_operator.optional_kinds import OptionalKinds

_SETTLE_S = 2.0
"""After a gap all watches list anew, one by one: one listing of ours serves them all."""
_RETRY_S = 5.0


class Resync:
    def __init__(
        self,
        cluster: Cluster,
        cache: ObjectCache,
        wake: Callable[[ServiceKey], None],
        metrics: Metrics,
        namespaces: Sequence[str | None],
        interval_s: float,
        optional: OptionalKinds,
    ) -> None:
        """`namespaces` is (None,) for the whole cluster."""
        self._cluster = cluster
        self._cache = cache
        self._wake = wake
        self._metrics = metrics
        self._namespaces = namespaces
        self._interval_s = interval_s
        self._optional = optional
        self._gap = asyncio.Event()
        self._fresh_s: float | None = None

    @property
    def age_s(self) -> float | None:
        """Seconds since the last full listing, or since the first was tried; None before that."""
        return None if self._fresh_s is None else time.monotonic() - self._fresh_s

    def after_gap(self) -> None:
        """A watch has listed anew: list everything soon."""
        self._gap.set()

    async def once(self) -> None:
        """Raises ApiError."""
        await self._optional.look()
        for kind in (*self._optional.served, *WATCHED_KINDS):
            selector = "" if kind == INFERENCE_SERVICE else MANAGED_SELECTOR
            for namespace in self._namespaces:
                listing = await self._cluster.list(kind, namespace, selector)
                self._cache.replace_all(kind, namespace, listing.items, listing.resource_version)
            self._metrics.told_of(kind.name)
        self._fresh_s = time.monotonic()
        self._metrics.last_resync_time.set_to_current_time()
        for key in self._cache.services():
            self._wake(key)

    async def until_done(self) -> None:
        """Tries until it succeeds: the API server may be away, or the CRD not be there yet."""
        if self._fresh_s is None:
            self._fresh_s = time.monotonic()
        while True:
            try:
                return await self.once()
            except ApiError as error:
                structlog.get_logger().warning("listing failed", error=str(error))
                await asyncio.sleep(_RETRY_S)

    async def run(self) -> None:
        while True:
            await self._until_due()
            self._gap.clear()
            await self.until_done()

    async def _until_due(self) -> None:
        try:
            async with asyncio.timeout(self._interval_s):
                await self._gap.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_SETTLE_S)

    def count_services(self) -> None:
        self._metrics.services.clear()
        for key in self._cache.services():
            body = self._cache.service(key) or {}
            for condition in body.get("status", {}).get("conditions", []):
                self._metrics.services.labels(condition["type"], condition["status"]).inc()
