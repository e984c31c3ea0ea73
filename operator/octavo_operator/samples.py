"""What the ready pods of all services bear, read from their own /metrics.

One reader for all services. A pod's sample is fresh, stale or absent; only fresh ones are given
out, and the others are counted, never taken for idle. Knows nothing of what the numbers are for.
"""

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import aiohttp
import structlog
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from octavo_operator import pod_causes
from octavo_operator.autoscale import ReplicaLoad
from octavo_operator.cache import ObjectCache, ServiceKey
from octavo_operator.config import SampleSettings
from octavo_operator.engine_args import ENGINE_PORT
from octavo_operator.kinds import Manifest
from octavo_operator.metrics import Metrics
from octavo_operator.snapshot import Snapshot
from octavo_operator.startup import Stages

PENDING = "vllm:num_requests_waiting"
RUNNING = "vllm:num_requests_running"
KV_USE = "vllm:kv_cache_usage_perc"
MAX_RUNNING = "octavo:max_num_seqs"
_NAMES = (PENDING, RUNNING, KV_USE, MAX_RUNNING)
STARTUP = "octavo:startup_seconds"

_FRESH_INTERVALS = 3
"""A sample is stale when the pod did not answer so many times in a row."""
_MAX_BYTES = 4 * 1024 * 1024
_TELL_S = 60.0
"""Services whose load has changed are woken so long, so that the status comes after."""


class SampleError(Exception):
    """A pod's answer that holds no load."""


@dataclass(frozen=True)
class ServiceLoad:
    loads: tuple[ReplicaLoad, ...] = ()
    """Of the ready pods with a fresh sample, in the order of their names."""
    num_unread: int = 0
    """Ready pods whose sample is stale or absent."""
    stages: Mapping[str, Stages] = field(default_factory=dict)
    """Uid of a pod with a sample -> how long its engine's start took, stage by stage."""


class _Sample(NamedTuple):
    load: ReplicaLoad
    stages: Stages
    at_s: float
    """Monotonic."""


class _Change(NamedTuple):
    load: ServiceLoad
    """What a service bears since."""
    at_s: float
    """Monotonic."""


_UNKNOWN = _Change(ServiceLoad(), -math.inf)


class SampleReader:
    def __init__(
        self,
        cache: ObjectCache,
        metrics: Metrics,
        settings: SampleSettings,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cache = cache
        self._metrics = metrics
        self._settings = settings
        self._monotonic_s = monotonic_s
        self._samples: dict[str, _Sample] = {}
        """By uid of the pod."""
        self._unread: set[str] = set()
        """Uids of the pods that could not be read last."""
        self._changes: dict[ServiceKey, _Change] = {}

    async def run(
        self,
        wake: Callable[[ServiceKey], None],
        waits_for_time: Callable[[ServiceKey], bool],
    ) -> None:
        """Reads at intervals until cancelled.

        After each reading `wake` is called for the services whose load has changed lately, and for
        those that wait for time to pass.
        """
        async with self.session() as session:
            while True:
                begun_s = self._monotonic_s()
                await self.once(session)
                for key in self.changed_lately():
                    wake(key)
                for key in self._cache.services():
                    if waits_for_time(key):
                        wake(key)
                seconds = self._monotonic_s() - begun_s
                self._metrics.sample_pass_seconds.observe(seconds)
                await asyncio.sleep(max(self._settings.interval_seconds - seconds, 0.0))

    def session(self) -> aiohttp.ClientSession:
        """With the limits of the settings; to be closed by the caller."""
        # The connector sets no limit: a pod's time would run while it waits for its turn there.
        return aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._settings.timeout_seconds),
            connector=aiohttp.TCPConnector(limit=0),
        )

    async def once(self, session: aiohttp.ClientSession) -> None:
        pods = {key: ready_pods(self._cache.snapshot(key)) for key in self._cache.services()}
        turns = asyncio.Semaphore(self._settings.concurrency)

        async def read(pod: Manifest) -> None:
            async with turns:
                await self._read(session, pod)

        await asyncio.gather(*(read(pod) for ready in pods.values() for pod in ready))
        self._forget_all_but(pod for ready in pods.values() for pod in ready)

    def load(self, snapshot: Snapshot) -> ServiceLoad:
        """Of one service, as its pods told last."""
        oldest_s = self._monotonic_s() - self._settings.interval_seconds * _FRESH_INTERVALS
        ready = [str(pod["metadata"]["uid"]) for pod in ready_pods(snapshot)]
        known = {uid: self._samples[uid] for uid in ready if uid in self._samples}
        loads = tuple(sample.load for sample in known.values() if sample.at_s >= oldest_s)
        stages = {uid: sample.stages for uid, sample in known.items() if sample.stages}
        return ServiceLoad(loads, len(ready) - len(loads), stages)

    async def _read(self, session: aiohttp.ClientSession, pod: Manifest) -> None:
        metadata = pod["metadata"]
        try:
            text = await _fetch(session, pod)
            load, stages = parse(text), parse_stages(text)
        except (TimeoutError, aiohttp.ClientError, OSError, SampleError) as error:
            self._metrics.sample_reads.labels("failed").inc()
            self._tell_once(metadata, error)
            return
        self._metrics.sample_reads.labels("read").inc()
        self._unread.discard(metadata["uid"])
        self._samples[metadata["uid"]] = _Sample(load, stages, self._monotonic_s())

    def _tell_once(self, metadata: Manifest, error: Exception) -> None:
        """Until the pod is read again: a line at each interval would fill the log."""
        if metadata["uid"] in self._unread:
            return
        self._unread.add(metadata["uid"])
        structlog.get_logger().warning(
            "pod not read",
            namespace=metadata["namespace"],
            pod=metadata["name"],
            error=str(error) or type(error).__name__,
        )

    def changed_lately(self) -> list[ServiceKey]:
        """The services whose load differs from what it was at the last call, or did a while ago."""
        before, self._changes = self._changes, {}
        for key in self._cache.services():
            now = _Change(self.load(self._cache.snapshot(key)), self._monotonic_s())
            last = before.get(key, _UNKNOWN)
            self._changes[key] = last if last.load == now.load else now
        now_s = self._monotonic_s()
        return [key for key, last in self._changes.items() if now_s - last.at_s < _TELL_S]

    def _forget_all_but(self, pods: Iterable[Manifest]) -> None:
        uids = {pod["metadata"]["uid"] for pod in pods}
        self._samples = {uid: sample for uid, sample in self._samples.items() if uid in uids}
        self._unread &= uids


def ready_pods(snapshot: Snapshot) -> list[Manifest]:
    """The pods that get requests: one that leaves finishes what it has and gets no more."""
    return [
        pod for pod in snapshot.pods if pod_causes.is_ready(pod) and not pod_causes.is_leaving(pod)
    ]


def parse(text: str) -> ReplicaLoad:
    """Raises SampleError that names what is missing or is no number of requests."""
    found: dict[str, list[float]] = {name: [] for name in _NAMES}
    for sample in _parsed(text, _NAMES):
        if sample.name in found:
            found[sample.name].append(sample.value)
    for name, values in found.items():
        if not values or not all(0 <= value < float("inf") for value in values):
            raise SampleError(f"{name} is {values or 'missing'}")
    return ReplicaLoad(
        num_pending=int(sum(found[PENDING])),
        num_running=int(sum(found[RUNNING])),
        kv_use=sum(found[KV_USE]) / len(found[KV_USE]),
        max_running=int(sum(found[MAX_RUNNING])),
    )


def parse_stages(text: str) -> Stages:
    """Empty where the engine tells none. Raises SampleError where it tells no numbers."""
    found = {
        sample.labels["stage"]: sample.value
        for sample in _parsed(text, (STARTUP,))
        if sample.name == STARTUP and "stage" in sample.labels
    }
    if not all(0 <= seconds < float("inf") for seconds in found.values()):
        raise SampleError(f"{STARTUP} is {found}")
    return {stage: round(1000 * seconds) for stage, seconds in found.items() if stage != "total"}


def _parsed(text: str, names: tuple[str, ...]) -> list[Sample]:
    # An exposition is mostly buckets of histograms: only what is wanted goes through the parser.
    lines = [line for line in text.splitlines() if line.startswith(names)]
    try:
        families = text_string_to_metric_families("\n".join(lines) + "\n")
        return [sample for family in families for sample in family.samples]
    except ValueError as error:
        raise SampleError(f"no metrics in the text format: {error}") from error


async def _fetch(session: aiohttp.ClientSession, pod: Manifest) -> str:
    address = pod.get("status", {}).get("podIP")
    if not address:
        raise SampleError("the pod has no address")
    host = f"[{address}]" if ":" in address else address
    async with session.get(f"http://{host}:{ENGINE_PORT}/metrics", allow_redirects=False) as answer:
        if answer.status != 200:
            raise SampleError(f"/metrics answers {answer.status}")
        text = await answer.content.read(_MAX_BYTES)
        while chunk := await answer.content.read(_MAX_BYTES):
            text += chunk
            if len(text) > _MAX_BYTES:
                raise SampleError(f"/metrics gives more than {_MAX_BYTES} bytes")
        return text.decode(errors="replace")
