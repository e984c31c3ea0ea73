"""The operator's own metrics, in a registry of their own."""

import time
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "octavo_operator_reconcile_duration_seconds",
            "Time of one reconcile of one service.",
            ["outcome"],
            buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
            registry=self.registry,
        )
        self.api_calls = Counter(
            "octavo_operator_api_calls",
            "Calls to the API server beside watches; code 0 means no answer.",
            ["verb", "resource", "code"],
            registry=self.registry,
        )
        self.applied = Counter(
            "octavo_operator_applied_objects",
            "Objects applied, by kind and cause (missing, changed, drifted).",
            ["kind", "cause"],
            registry=self.registry,
        )
        self.removed = Counter(
            "octavo_operator_removed_objects",
            "Objects removed since no setting asks for them any more, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.evicted = Counter(
            "octavo_operator_evicted_pods",
            "Pods evicted since their accelerator is broken.",
            registry=self.registry,
        )
        self.queue_length = Gauge(
            "octavo_operator_queue_length",
            "Services that wait for a reconcile.",
            registry=self.registry,
        )
        self.queue_wait_seconds = Histogram(
            "octavo_operator_queue_wait_seconds",
            "Time from a wake to the begin of its reconcile.",
            buckets=(0.001, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60),
            registry=self.registry,
        )
        self.last_event_time = Gauge(
            "octavo_operator_last_event_timestamp_seconds",
            "When the last watch event came, by kind.",
            ["kind"],
            registry=self.registry,
        )
        self.last_resync_time = Gauge(
            "octavo_operator_last_resync_timestamp_seconds",
            "When everything was last listed anew.",
            registry=self.registry,
        )
        self._watch_age = Gauge(
            "octavo_operator_watch_age_seconds",
            "Time since the API server last told of a kind: by a watch event, or by a listing.",
            ["kind"],
            registry=self.registry,
        )
        self._told_s: dict[str, float] = {}
        """Name of a kind -> when the API server last told of it; monotonic."""
        self.is_leader = Gauge(
            "octavo_operator_is_leader",
            "1 while this process holds the Lease.",
            registry=self.registry,
        )
        self.services = Gauge(
            "octavo_operator_services",
            "Services by condition and status.",
            ["condition", "status"],
            registry=self.registry,
        )
        self.events = Counter(
            "octavo_operator_events",
            "Kubernetes Events about services, by outcome (written, repeated, dropped, failed).",
            ["type", "outcome"],
            registry=self.registry,
        )
        self.startup_seconds = Histogram(
            "octavo_operator_startup_seconds",
            "Time from a pod's creation until it answered, by phase "
            "(schedule, image, fetch, load, total).",
            ["phase"],
            buckets=(1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640, 1280, 2560),
            registry=self.registry,
        )
        self.backoff_seconds = Histogram(
            "octavo_operator_backoff_seconds",
            "Delays before a failed reconcile is tried again.",
            buckets=(0.5, 1, 2, 4, 8, 16, 32, 64, 128),
            registry=self.registry,
        )
        self.sample_reads = Counter(
            "octavo_operator_sample_reads",
            "Readings of a pod's metrics, by outcome (read, failed).",
            ["outcome"],
            registry=self.registry,
        )
        self.sample_pass_seconds = Histogram(
            "octavo_operator_sample_pass_seconds",
            "Time to read all ready pods once.",
            buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
            registry=self.registry,
        )
        self.scalings = Counter(
            "octavo_operator_scalings",
            "Changes of the number of replicas by the operator's own law.",
            ["direction", "reason"],
            registry=self.registry,
        )
        self.autoscaling = Gauge(
            "octavo_operator_autoscaling",
            "The last decision about a service: replicas, its inputs and its terms, by name.",
            ["namespace", "service", "value"],
            registry=self.registry,
        )
        self._autoscaled: dict[tuple[str, str], tuple[str, ...]] = {}
        """Namespace and name of a service -> the values told of it."""

    def told_of(self, kind: str) -> None:
        """The API server has told of a kind just now."""
        if kind not in self._told_s:
            age = self._watch_age.labels(kind)
            age.set_function(lambda: time.monotonic() - self._told_s[kind])
        self._told_s[kind] = time.monotonic()

    def tell_autoscaling(self, namespace: str, service: str, values: Mapping[str, float]) -> None:
        """Instead of what was told of the service before."""
        self.forget_autoscaling(namespace, service)
        for name, value in values.items():
            self.autoscaling.labels(namespace, service, name).set(value)
        self._autoscaled[namespace, service] = tuple(values)

    def forget_autoscaling(self, namespace: str, service: str) -> None:
        for name in self._autoscaled.pop((namespace, service), ()):
            self.autoscaling.remove(namespace, service, name)
