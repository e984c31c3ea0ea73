"""The schema of `metrics.py` made into a Prometheus registry of one server process.

What the core counts is read from its own statistics at each scrape, so it cannot drift; latencies
are observed as tokens leave. A scrape may run in a thread.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from octavo_engine.messages import STEP_TOKENS_BOUNDS, EngineInfo, EngineStats
from octavo_engine.server import metrics as schema
from octavo_engine.server.gpu import GpuReading
from octavo_engine.server.histogram import FastHistogram
from octavo_engine.server.metric_spec import COMMON_LABELS, MetricSpec

M = TypeVar("M", Gauge, Counter)

ReadCore = Callable[[], tuple[EngineStats, EngineInfo] | None]
"""None while the engine loads."""


class ServerMetrics:
    """The registry, and what the routes observe."""

    def __init__(
        self,
        model_name: str,
        read_core: ReadCore,
        read_gpus: Callable[[], list[GpuReading]] = list,
        prefix: str = "vllm:",
    ) -> None:
        """prefix: of the metrics whose names others have made common."""
        self.registry = CollectorRegistry()
        self._prefix = prefix
        self._label_values = (model_name, "0")
        self.registry.register(_CoreCollector(read_core, prefix, self._label_values))
        self.registry.register(_GpuCollector(read_gpus, prefix, self._label_values))
        self._histograms: list[FastHistogram] = []
        self.registry.register(_HistogramCollector(self._histograms))

        self.time_to_first_token_s = self._histogram(schema.TTFT)
        self.inter_token_latency_s = self._histogram(schema.ITL)
        self.time_per_output_token_s = self._histogram(schema.TIME_PER_TOKEN)
        self.e2e_request_latency_s = self._histogram(schema.E2E)
        self.queue_time_s = self._histogram(schema.QUEUE_TIME)
        self.prefill_time_s = self._histogram(schema.PREFILL_TIME)
        self.decode_time_s = self._histogram(schema.DECODE_TIME)
        self.inference_time_s = self._histogram(schema.INFERENCE_TIME)
        self.prompt_tokens = self._histogram(schema.PROMPT_TOKENS)
        self.generation_tokens = self._histogram(schema.GENERATION_TOKENS)
        self.params_n = self._histogram(schema.PARAMS_N)
        self.params_max_tokens = self._histogram(schema.PARAMS_MAX_TOKENS)
        self.event_loop_lag_s = self._histogram(schema.LOOP_LAG)
        self.grammar_compile_s = self._histogram(schema.COMPILE_TIME)
        self.in_flight = self._bound(self._make(Gauge, schema.IN_FLIGHT))
        self.draining = self._bound(self._make(Gauge, schema.DRAINING))
        self.disconnects = self._bound(self._make(Counter, schema.DISCONNECTS))
        self._rejections = self._make(Counter, schema.REJECTIONS)
        self._phase = self._make(Gauge, schema.PHASE)
        self._startup = self._make(Gauge, schema.STARTUP)
        self._http_requests = self._make(Counter, schema.HTTP_REQUESTS)
        self._http_duration = Histogram(
            schema.HTTP_DURATION.name,
            schema.HTTP_DURATION.help,
            schema.HTTP_DURATION.labels,
            buckets=schema.HTTP_DURATION.buckets,
            registry=self.registry,
        )

    def observe_startup(self, stage: str, seconds: float) -> None:
        self._startup.labels(*self._label_values, stage).set(seconds)

    def count_rejection(self, reason: str) -> None:
        self._rejections.labels(*self._label_values, reason).inc()

    def tell_phase(self, phase: str, phases: Sequence[str]) -> None:
        for name in phases:
            self._phase.labels(*self._label_values, name).set(name == phase)

    def observe_http(self, method: str, handler: str, status: int, seconds: float) -> None:
        self._http_requests.labels(method, handler, f"{status // 100}xx").inc()
        self._http_duration.labels(method, handler).observe(seconds)

    def _make(self, kind: type[M], spec: MetricSpec) -> M:
        name = spec.full_name(self._prefix)
        return kind(name, spec.help, spec.all_labels, registry=self.registry)

    def _bound(self, metric: M) -> M:
        return metric.labels(*self._label_values)

    def _histogram(self, spec: MetricSpec) -> FastHistogram:
        labels = dict(zip(spec.all_labels, self._label_values, strict=True))
        name = spec.full_name(self._prefix)
        histogram = FastHistogram(name, spec.help, labels, spec.buckets)
        self._histograms.append(histogram)
        return histogram


class _HistogramCollector(Collector):
    def __init__(self, histograms: Sequence[FastHistogram]) -> None:
        self._histograms = histograms

    def collect(self) -> Iterator[Metric]:
        return (histogram.family() for histogram in self._histograms)

    def describe(self) -> Iterator[Metric]:
        return iter(())


class _CoreCollector(Collector):
    """Turns one snapshot of the core into metric families; nothing while the engine loads."""

    def __init__(self, read_core: ReadCore, prefix: str, label_values: tuple[str, ...]) -> None:
        self._read_core = read_core
        self._prefix = prefix
        self._label_values = label_values

    def collect(self) -> Iterator[Metric]:
        core = self._read_core()
        if core is None:
            return
        stats, info = core
        for spec in schema.CORE_METRICS:
            assert spec.read is not None
            family = _family(spec, self._prefix)
            values = spec.read(stats, info)
            named = {"": values} if isinstance(values, int | float) else values
            for label, value in named.items():
                extra = (label,) if spec.labels else ()
                family.add_metric([*self._label_values, *extra], value)
            yield family
        yield self._iteration_tokens(stats)
        cache = _family(schema.CACHE_CONFIG, self._prefix)
        facts = (str(info.block_size), str(info.num_blocks), info.dtype)
        cache.add_metric([*self._label_values, *facts], 1)
        yield cache

    def _iteration_tokens(self, stats: EngineStats) -> Metric:
        spec, steps = schema.ITERATION_TOKENS, stats.steps
        family = HistogramMetricFamily(
            spec.full_name(self._prefix), spec.help, labels=spec.all_labels
        )
        bounds = [*(str(float(bound)) for bound in STEP_TOKENS_BOUNDS), "+Inf"]
        buckets = list(zip(bounds, accumulate(steps.tokens_histogram), strict=True))
        family.add_metric(self._label_values, buckets, sum_value=steps.num_tokens)
        return family

    def describe(self) -> Iterator[Metric]:
        """Nothing: registering must not ask the core for numbers."""
        return iter(())


class _GpuCollector(Collector):
    def __init__(
        self,
        read_gpus: Callable[[], list[GpuReading]],
        prefix: str,
        label_values: tuple[str, ...],
    ) -> None:
        self._read_gpus = read_gpus
        self._prefix = prefix
        self._label_values = label_values

    def collect(self) -> Iterator[Metric]:
        readings = self._read_gpus()
        for field, spec in schema.GPU_METRICS.items() if readings else ():
            family = _family(spec, self._prefix)
            for gpu in readings:
                value = getattr(gpu, field)
                if value is not None:
                    family.add_metric([*self._label_values, str(gpu.index)], value)
            yield family

    def describe(self) -> Iterator[Metric]:
        return iter(())


def _family(spec: MetricSpec, prefix: str) -> GaugeMetricFamily | CounterMetricFamily:
    kind = GaugeMetricFamily if spec.kind == "gauge" else CounterMetricFamily
    return kind(spec.full_name(prefix), spec.help, labels=[*COMMON_LABELS, *spec.labels])
