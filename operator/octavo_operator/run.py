"""The operator's process: health endpoint, then the Lease, then the controller while it is held.

Ends when asked to, when the Lease is lost, or when any part fails: a fresh process is the one
recovery that is always right, since all state is in the objects.
"""

import asyncio
import os
import socket
import uuid

import structlog

from octavo_operator import connection, health
from octavo_operator.cluster import Cluster
from octavo_operator.config import OperatorConfig
from octavo_operator.controller import Controller
from octavo_operator.errors import ApiError, LeaseLost
from octavo_operator.lease import LeaderLease
from octavo_operator.metrics import Metrics
from octavo_operator.resync import Resync
from octavo_operator.tasks import stop_on_signals, together, unless_stopped

_RELEASE_TIMEOUT_S = 5.0


async def run(config: OperatorConfig) -> None:
    """Returns after SIGTERM or SIGINT; raises LeaseLost or whatever ended a part."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    metrics = Metrics()
    async with connection.client(await connection.configuration()) as client:
        cluster = Cluster(client, metrics)
        lease = LeaderLease(cluster, config.lease, connection.own_namespace(), _identity())
        controller = Controller(config, cluster, metrics, lease.until_fresh, stop)
        resync = controller.resync
        application = health.app(_staleness(lease, resync, config), metrics, resync.count_services)
        async with health.serving(application, config.health_host, config.health_port) as port:
            structlog.get_logger().info("started", health_port=port)
            if await unless_stopped(lease.acquire(), stop):
                metrics.is_leader.set(1)
                await _lead(lease, controller, stop)
    structlog.get_logger().info("stopped")


async def _lead(lease: LeaderLease, controller: Controller, stop: asyncio.Event) -> None:
    try:
        await unless_stopped(
            together(lease.hold(controller.resync.after_gap), controller.run()), stop
        )
    except LeaseLost:
        raise  # nothing of ours to give back
    except BaseException:
        await _release(lease)
        raise
    await _release(lease)


async def _release(lease: LeaderLease) -> None:
    """A standby takes over at once; where this fails, after the Lease's duration."""
    try:
        async with asyncio.timeout(_RELEASE_TIMEOUT_S):
            await lease.release()
    except (ApiError, TimeoutError) as error:
        structlog.get_logger().warning("lease not released", error=str(error))


def _staleness(lease: LeaderLease, resync: Resync, config: OperatorConfig) -> health.Check:
    contact_limit_s = 3.0 * config.lease.duration_seconds
    resync_limit_s = 2.0 * config.resync_seconds + 60.0

    def check() -> str | None:
        if lease.contact_age_s > contact_limit_s:
            return f"no answer about the Lease for {lease.contact_age_s:.0f} s"
        age_s = resync.age_s
        if age_s is not None and age_s > resync_limit_s:
            return f"nothing listed anew for {age_s:.0f} s, limit {resync_limit_s:.0f} s"
        return None

    return check


def _identity() -> str:
    """A restarted container of the same pod is the same holder: its forerunner is surely dead."""
    return os.environ.get("POD_NAME") or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
