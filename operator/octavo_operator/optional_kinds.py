"""Kinds that other projects bring, and whether the API server serves them now.

Asked at the start and at each full listing; a kind that comes or goes begins the watches anew.
Knows nothing of services.
"""

import asyncio
from collections.abc import Collection

import structlog

from octavo_operator.cluster import Cluster
from octavo_operator.errors import ApiRejected
from octavo_operator.kinds import Kind

_GONE = frozenset({404, 405})
"""What a write is answered with once a kind's definition is gone."""

_TERMINATING = "not allowed while custom resource definition is terminating"
"""What a create is refused with (403) while the definition goes and is still served.

The answer carries nothing else that tells it from a right that is missing.
"""


class OptionalKinds:
    def __init__(self, cluster: Cluster, wished: Collection[Kind]) -> None:
        """`wished`: those that are used where they are served."""
        self._cluster = cluster
        self._wished = tuple(wished)
        self._served: frozenset[Kind] = frozenset()
        self.changed = asyncio.Event()
        """Set when a kind has come or gone; cleared by who begins the watches anew."""

    @property
    def served(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self._wished if kind in self._served)

    async def look(self) -> None:
        """Raises ApiUnavailable."""
        self._take({kind for kind in self._wished if await self._is_served(kind)})

    def is_refused(self, kind: Kind, error: ApiRejected) -> bool:
        """Whether a write was refused since its kind goes; once it has gone it is taken as gone.

        Also for the second service that comes to it: its plan is from before the first one's.
        """
        if kind not in self._wished:
            return False
        if error.status in _GONE:
            self._take(self._served - {kind})
            return True
        return error.status == 403 and _TERMINATING in error.message

    async def _is_served(self, kind: Kind) -> bool:
        try:
            return await self._cluster.serves(kind)
        except ApiRejected as error:
            structlog.get_logger().warning("kind not looked up", kind=kind.name, error=str(error))
            return False

    def _take(self, served: Collection[Kind]) -> None:
        found = frozenset(served)
        if found == self._served:
            return
        self._served = found
        structlog.get_logger().info("optional kinds", served=[kind.name for kind in self.served])
        self.changed.set()
