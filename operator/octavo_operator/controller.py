"""All that runs while the Lease is held: the first listing, then workers, watches and resync."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import kopf
import structlog

from octavo_operator import connection, handlers
from octavo_operator.cache import ObjectCache, ServiceKey
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.errors import ApiError, ApiUnavailable
from octavo_operator.events import EventWriter
from octavo_operator.kinds import OPTIONAL_KINDS, WATCHED_KINDS, Kind
from octavo_operator.metrics import Metrics
from octavo_operator.optional_kinds import OptionalKinds
from octavo_operator.reconcile import Outcome, Reconciler
from octavo_operator.resync import Resync
from octavo_operator.samples import SampleReader
from octavo_operator.scaling import Autoscaler
from octavo_operator.tasks import stop_on_signals, together, unless_stopped
from octavo_operator.workqueue import WorkQueue

_LOOK_AGAIN_S = {"waiting": 5.0, "rejected": 60.0}
"""Outcome -> seconds: what may end without an event, as by a foreign object's removal."""

_WATCH_AGAIN_S = 2.0


class Controller:
    def __init__(
        self,
        config: OperatorConfig,
        cluster: Cluster,
        metrics: Metrics,
        until_may_write: Callable[[], Awaitable[None]],
        stop: asyncio.Event,
    ) -> None:
        """`until_may_write` returns when this process is surely the active one."""
        self._config = config
        self._metrics = metrics
        self._until_may_write = until_may_write
        self._stop = stop
        self._cache = ObjectCache()
        self._queue = WorkQueue()
        # Also where they are not wished any more: those that were made have to go.
        self._optional = OptionalKinds(cluster, OPTIONAL_KINDS)
        self._samples = SampleReader(self._cache, metrics, config.samples)
        self._autoscaler = Autoscaler(self._samples.load, metrics)
        self._reconciler = Reconciler(
            cluster,
            self._cache,
            config.engine,
            metrics,
            lambda: datetime.now(UTC),
            self._autoscaler,
            self._queue.wake_later,
            EventWriter(cluster, metrics, lambda: datetime.now(UTC)),
            timedelta(seconds=config.surge_wait_seconds),
            connection.own_namespace(),
            config.pod_monitors,
            self._optional,
            config.evict_after_gpu_faults,
        )
        self.resync = Resync(
            cluster,
            self._cache,
            self._queue.wake,
            metrics,
            config.watch_namespaces or (None,),
            config.resync_seconds,
            self._optional,
        )

    async def run(self) -> None:
        """Runs until cancelled or stopped; raises what ended a part."""
        # Before the first reconcile everything must be known: what seems absent would be made.
        await self.resync.until_done()
        workers = [self._work() for _ in range(self._config.workers)]
        reading = self._samples.run(self._queue.wake, self._autoscaler.waits_for_time)
        await together(*workers, self.resync.run(), reading, self._watch())

    async def _watch(self) -> None:
        """kopf gives up on answers such as 403 and 500, which a starting API server gives, too."""
        while not self._stop.is_set():
            try:
                await self._watch_once()
            except Exception as error:
                stop_on_signals(self._stop)  # kopf has taken them, and leaves them to nobody
                structlog.get_logger().warning("watches ended", error=str(error) or repr(error))
                await asyncio.sleep(_WATCH_AGAIN_S)
                self.resync.after_gap()

    async def _watch_once(self) -> None:
        """Until told to stop, or until an optional kind has come or gone."""
        self._optional.changed.clear()
        kinds = (*WATCHED_KINDS, *self._optional.served)
        if not await unless_stopped(self._watch_kinds(kinds), self._optional.changed):
            stop_on_signals(self._stop)
            self.resync.after_gap()

    async def _watch_kinds(self, kinds: Sequence[Kind]) -> None:
        registry = handlers.registry(
            self._cache, self._queue.wake, self.resync.after_gap, self._metrics, kinds
        )
        namespaces = self._config.watch_namespaces
        await kopf.operator(
            registry=registry,
            settings=handlers.settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=list(namespaces),
            stop_flag=self._stop,
        )
        # kopf takes the signals while it runs, and comes back without an error only after one.
        self._stop.set()

    async def _work(self) -> None:
        while True:
            self._metrics.queue_length.set(len(self._queue))
            key, waited_s = await self._queue.take()
            self._metrics.queue_wait_seconds.observe(waited_s)
            await self._until_may_write()
            begun_s = time.perf_counter()
            outcome = await self._reconcile(key)
            seconds = time.perf_counter() - begun_s
            self._metrics.reconcile_seconds.labels(outcome).observe(seconds)

    async def _reconcile(self, key: ServiceKey) -> Outcome:
        """Every line that is logged meanwhile names the service and its generation."""
        body = self._cache.service(key)
        generation = None if body is None else body["metadata"]["generation"]
        with structlog.contextvars.bound_contextvars(service="/".join(key), generation=generation):
            return await self._tried(key)

    async def _tried(self, key: ServiceKey) -> Outcome:
        try:
            outcome = await self._reconciler.reconcile(key)
        except ApiError as error:
            asked_s = error.retry_after_s if isinstance(error, ApiUnavailable) else None
            delay_s = self._queue.failed(key, asked_s or 0.0)
            self._metrics.backoff_seconds.observe(delay_s)
            structlog.get_logger().warning(
                "reconcile failed", service="/".join(key), error=str(error), retry_s=delay_s
            )
            return "failed"
        except Exception:
            # A mistake of ours in one service must not stop the work for all others.
            delay_s = self._queue.failed(key)
            self._metrics.backoff_seconds.observe(delay_s)
            structlog.get_logger().exception(
                "reconcile broke", service="/".join(key), retry_s=delay_s
            )
            return "failed"
        self._queue.done(key)
        if outcome in _LOOK_AGAIN_S:
            self._queue.wake_later(key, _LOOK_AGAIN_S[outcome])
        return outcome
