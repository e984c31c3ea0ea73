"""Every metric of the engine's server: names, help, labels and buckets in one schema.

Counters and gauges are read from the core's own statistics at each scrape, so they cannot drift;
histograms are observed as tokens leave. The names under `vllm:` are those that dashboards, KEDA
triggers and the gateway extension already use; what those lack is under `octavo:`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from octavo_engine.messages import EngineStats

LABELS = ("model_name", "engine")

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5),
    *(10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
# On Hopper 4 to 8 ms is normal; buckets that begin at 10 ms see nothing there.
ITL_BUCKETS_S = (
    *(0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.01, 0.025, 0.05, 0.075, 0.1),
    *(0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
LOOP_LAG_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
E2E_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class StatMetric(msgspec.Struct, frozen=True):
    """A metric that is one number of the core's statistics."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[EngineStats], float]


STAT_METRICS: tuple[StatMetric, ...] = (
    StatMetric(
        "vllm:num_requests_running",
        "gauge",
        "Requests that take part in the engine's steps.",
        lambda stats: stats.num_running,
    ),
    StatMetric(
        "vllm:num_requests_waiting",
        "gauge",
        "Requests that wait for room in the engine.",
        lambda stats: stats.num_waiting,
    ),
    StatMetric(
        "vllm:kv_cache_usage_perc",
        "gauge",
        "Share of the KV cache's pages that requests hold; 1 is full.",
        lambda stats: stats.kv_blocks_used / max(stats.kv_blocks_total, 1),
    ),
    StatMetric(
        "vllm:prompt_tokens",
        "counter",
        "Prompt tokens processed.",
        lambda stats: stats.prompt_tokens_total,
    ),
    StatMetric(
        "vllm:generation_tokens",
        "counter",
        "Tokens generated.",
        lambda stats: stats.generation_tokens_total,
    ),
    StatMetric(
        "vllm:num_preemptions",
        "counter",
        "Times a running request gave its pages up to another.",
        lambda stats: stats.preemptions_total,
    ),
    StatMetric(
        "vllm:prefix_cache_queries",
        "counter",
        "Prompt tokens looked up in the prefix cache.",
        lambda stats: stats.prefix_queries_tokens_total,
    ),
    StatMetric(
        "vllm:prefix_cache_hits",
        "counter",
        "Prompt tokens found in the prefix cache.",
        lambda stats: stats.prefix_hits_tokens_total,
    ),
    StatMetric(
        "octavo:kv_blocks_total",
        "gauge",
        "Pages of the KV cache.",
        lambda stats: stats.kv_blocks_total,
    ),
    StatMetric(
        "octavo:kv_blocks_used",
        "gauge",
        "Pages that requests hold.",
        lambda stats: stats.kv_blocks_used,
    ),
    StatMetric(
        "octavo:kv_blocks_cached",
        "gauge",
        "Pages kept for later prefix hits that no request holds.",
        lambda stats: stats.kv_blocks_cached,
    ),
    StatMetric(
        "octavo:steps",
        "counter",
        "Steps of the engine.",
        lambda stats: stats.steps_total,
    ),
    StatMetric(
        "octavo:last_step_age_seconds",
        "gauge",
        "Seconds since the engine's loop last made progress.",
        lambda stats: stats.last_step_age_s,
    ),
)
SUCCESS_METRIC = ("vllm:request_success", "Sequences ended, by the reason they ended for.")


class _StatsCollector(Collector):
    """Turns one snapshot of the core into metric families; nothing while the engine loads."""

    def __init__(
        self, read_stats: Callable[[], EngineStats | None], label_values: Sequence[str]
    ) -> None:
        self._read_stats = read_stats
        self._label_values = label_values

    def collect(self) -> Iterator[Metric]:
        stats = self._read_stats()
        if stats is None:
            return
        for metric in STAT_METRICS:
            family_type = GaugeMetricFamily if metric.kind == "gauge" else CounterMetricFamily
            family = family_type(metric.name, metric.help, labels=LABELS)
            family.add_metric(self._label_values, metric.read(stats))
            yield family
        finished = CounterMetricFamily(*SUCCESS_METRIC, labels=(*LABELS, "finished_reason"))
        for reason, count in sorted(stats.finished_total.items()):
            finished.add_metric((*self._label_values, reason), count)
        yield finished

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask the core for numbers."""
        return iter(())


class ServerMetrics:
    """The registry of one server process and the histograms that its routes observe."""

    def __init__(self, model_name: str, read_stats: Callable[[], EngineStats | None]) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(_StatsCollector(read_stats, (model_name, "0")))
        self._labels = {"model_name": model_name, "engine": "0"}

        self.time_to_first_token_s = self._histogram(
            "vllm:time_to_first_token_seconds",
            "Seconds from a request's arrival to its first token.",
            TTFT_BUCKETS_S,
        )
        self.inter_token_latency_s = self._histogram(
            "vllm:inter_token_latency_seconds",
            "Seconds between two tokens of a sequence.",
            ITL_BUCKETS_S,
        )
        self.e2e_request_latency_s = self._histogram(
            "vllm:e2e_request_latency_seconds",
            "Seconds from a request's arrival to its last token.",
            E2E_BUCKETS_S,
        )
        self.event_loop_lag_s = self._histogram(
            "octavo:event_loop_lag_seconds",
            "How late the server's event loop runs what is due; sampled twice a second.",
            LOOP_LAG_BUCKETS_S,
        )
        self.in_flight = self._gauge(
            "octavo:http_requests_in_flight", "Generation requests that the server holds open."
        )
        self.draining = self._gauge(
            "octavo:draining", "1 from the signal to stop on, when new work is refused."
        )
        self.disconnects = self._counter(
            "octavo:client_disconnects", "Requests ended because their client went away."
        )
        self._max_num_seqs = Gauge(
            "octavo:max_num_seqs",
            "Sequences that run at once at most.",
            LABELS,
            registry=self.registry,
        )
        self._startup_s = Gauge(
            "octavo:startup_seconds",
            "Seconds that a stage of the start took.",
            (*LABELS, "stage"),
            registry=self.registry,
        )

    def tell_room(self, max_num_seqs: int) -> None:
        """What the engine runs at most; not told before it is known."""
        self._max_num_seqs.labels(**self._labels).set(max_num_seqs)

    def observe_startup(self, stage: str, seconds: float) -> None:
        self._startup_s.labels(**self._labels, stage=stage).set(seconds)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        metric = Histogram(name, text, LABELS, buckets=buckets, registry=self.registry)
        return metric.labels(**self._labels)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, LABELS, registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry).labels(**self._labels)
