"""kopf's part: watch events in, wakes out. Every event of every kind does the same.

Only `on.event` is used: it stores nothing in the objects, sets no finalizer, and cannot hold up a
deletion when the operator is dead.
"""

from collections.abc import Callable, Iterable
from typing import Any

import kopf

from octavo_operator import connection
from octavo_operator.cache import ObjectCache, ServiceKey
from octavo_operator.kinds import (
    GROUP,
    INFERENCE_SERVICE,
    MANAGED_SELECTOR,
    OPTIONAL_KINDS,
    WATCHED_KINDS,
    Kind,
    Manifest,
)
from octavo_operator.metrics import Metrics

_SERVER_TIMEOUT_S = 290
_CLIENT_TIMEOUT_S = 300
_CONNECT_TIMEOUT_S = 10
_BACKOFFS_S = (0.5, 1, 1, 2, 2, 3, 3, 5)
"""After them a watch begins anew: an API server that is back is noticed within seconds."""


def registry(
    cache: ObjectCache,
    wake: Callable[[ServiceKey], None],
    listed: Callable[[], None],
    metrics: Metrics,
    kinds: Iterable[Kind] = WATCHED_KINDS,
) -> kopf.OperatorRegistry:
    """`listed` is told when kopf has listed a kind anew: deletions in the gap went untold."""
    built = kopf.OperatorRegistry()

    @kopf.on.login(registry=built, retries=10, backoff=2.0)
    async def login(**_: Any) -> kopf.ConnectionInfo:
        return await connection.for_kopf()

    for kind in kinds:
        group, version = kind.group_version
        handler = _handler(kind, cache, wake, listed, metrics)
        kopf.on.event(group, version, kind.plural, registry=built, id=kind.plural)(handler)
    return built


def _handler(
    kind: Kind,
    cache: ObjectCache,
    wake: Callable[[ServiceKey], None],
    listed: Callable[[], None],
    metrics: Metrics,
) -> Callable[..., Any]:
    async def on_event(event: dict[str, Any], **_: Any) -> None:
        metrics.last_event_time.labels(kind.name).set_to_current_time()
        metrics.told_of(kind.name)
        body: Manifest = dict(event["object"])
        if event["type"] is None:
            listed()
        key = cache.drop(kind, body) if event["type"] == "DELETED" else cache.put(kind, body)
        if key is not None:
            wake(key)

    return on_event


def settings() -> kopf.OperatorSettings:
    chosen = kopf.OperatorSettings()
    # It would kill the process ten minutes after a watch had to be begun anew.
    chosen.process.ultimate_exiting_timeout = None
    chosen.posting.enabled = False
    chosen.peering.standalone = True  # our own Lease elects
    chosen.scanning.disabled = True  # the kinds are fixed, and a narrow Role cannot list CRDs
    chosen.watching.server_timeout = _SERVER_TIMEOUT_S
    chosen.watching.client_timeout = _CLIENT_TIMEOUT_S
    chosen.watching.connect_timeout = _CONNECT_TIMEOUT_S
    chosen.watching.reconnect_backoff = 1.0
    chosen.queueing.idle_timeout = 0.5  # a worker that waits for more of the same object is held
    chosen.networking.request_timeout = 60
    chosen.networking.connect_timeout = _CONNECT_TIMEOUT_S
    chosen.networking.error_backoffs = _BACKOFFS_S
    # Nothing is stored with on.event alone; should that change, it goes under our own names.
    chosen.persistence.finalizer = f"{GROUP}/kopf"
    chosen.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{GROUP}")
    chosen.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{GROUP}")
    for kind in (*WATCHED_KINDS, *OPTIONAL_KINDS):
        if kind != INFERENCE_SERVICE:
            group, version = kind.group_version
            chosen.watching.label_selectors[group, version, kind.plural] = MANAGED_SELECTOR
    return chosen
