"""Every metric of the engine's server: the one schema of names, help, labels and buckets.

The registry (`metrics_registry.py`) and the reference page (`metrics_page.py`) are made from it.
"""

from octavo_engine.messages import EngineStats
from octavo_engine.server.metric_spec import (
    COMPILE_BUCKETS_S,
    COUNT_BUCKETS,
    HTTP_BUCKETS_S,
    ITL_BUCKETS_S,
    LOOP_LAG_BUCKETS_S,
    OWN_PREFIX,
    REQUEST_BUCKETS_S,
    TOKEN_BUCKETS,
    TTFT_BUCKETS_S,
    Kind,
    MetricSpec,
    Owner,
    Read,
)


def _read(kind: Kind, name: str, text: str, read: Read, label: str = "") -> MetricSpec:
    labels = (label,) if label else ()
    owner: Owner = "own" if name.startswith(OWN_PREFIX) else "compatible"
    name = name.removeprefix(OWN_PREFIX)
    return MetricSpec(name=name, kind=kind, owner=owner, help=text, labels=labels, read=read)


def _histogram(
    owner: Owner, name: str, text: str, buckets: tuple[float, ...], labels: tuple[str, ...] = ()
) -> MetricSpec:
    return MetricSpec(
        name=name, kind="histogram", owner=owner, help=text, labels=labels, buckets=buckets
    )


def _kv_pages(stats: EngineStats) -> dict[str, float]:
    used, cached = stats.kv_blocks_used, stats.kv_blocks_cached
    return {"used": used, "cached": cached, "free": stats.kv_blocks_total - used - cached}


def _step_parts(stats: EngineStats) -> dict[str, float]:
    steps = stats.steps
    parts = {"schedule": steps.schedule_s, "launch": steps.launch_s, "wait": steps.wait_s}
    return {**parts, "commit": steps.commit_s, "device": steps.device_s}


CORE_METRICS: tuple[MetricSpec, ...] = (
    # Compatible.
    _read(
        "gauge",
        "num_requests_running",
        "Requests that take part in the engine's steps.",
        lambda stats, info: stats.num_running,
    ),
    _read(
        "gauge",
        "num_requests_waiting",
        "Requests that wait for room in the engine.",
        lambda stats, info: stats.num_waiting,
    ),
    _read(
        "gauge",
        "num_requests_waiting_by_reason",
        "Requests that wait, by what they wait for; capacity: rows or pages.",
        lambda stats, info: {"capacity": stats.num_waiting, "deferred": 0},
        label="reason",
    ),
    _read(
        "gauge",
        "kv_cache_usage_perc",
        "Share of the KV cache's pages that requests hold; 1 is full.",
        lambda stats, info: stats.kv_blocks_used / max(stats.kv_blocks_total, 1),
    ),
    _read(
        "counter",
        "prompt_tokens",
        "Prompt tokens of the requests taken in.",
        lambda stats, info: stats.prompt_tokens_total,
    ),
    _read(
        "counter",
        "generation_tokens",
        "Tokens generated.",
        lambda stats, info: stats.generation_tokens_total,
    ),
    _read(
        "counter",
        "num_preemptions",
        "Times a running request gave its pages up to another.",
        lambda stats, info: stats.preemptions_total,
    ),
    _read(
        "counter",
        "prefix_cache_queries",
        "Prompt tokens looked up in the prefix cache.",
        lambda stats, info: stats.prefix_queries_tokens_total,
    ),
    _read(
        "counter",
        "prefix_cache_hits",
        "Prompt tokens found in the prefix cache.",
        lambda stats, info: stats.prefix_hits_tokens_total,
    ),
    _read(
        "counter",
        "prompt_tokens_cached",
        "Prompt tokens that were not computed, since the prefix cache held them.",
        lambda stats, info: stats.prefix_hits_tokens_total,
    ),
    _read(
        "counter",
        "request_success",
        "Sequences ended, by the reason they ended for.",
        lambda stats, info: stats.finished_total,
        label="finished_reason",
    ),
    # Our own.
    _read(
        "gauge",
        "octavo:max_num_seqs",
        "Sequences that can run at once.",
        lambda stats, info: info.max_num_seqs,
    ),
    _read(
        "gauge",
        "octavo:kv_blocks",
        "Pages of the KV cache: used by requests, cached for later prefix hits, free.",
        lambda stats, info: _kv_pages(stats),
        label="state",
    ),
    _read("counter", "octavo:steps", "Steps of the engine.", lambda stats, info: stats.steps_total),
    _read(
        "counter",
        "octavo:step_seconds",
        "Seconds of all steps by part: schedule, launch, wait (for the device) and commit are the "
        "host's and add up; device is what the steps took on the device beside them.",
        lambda stats, info: _step_parts(stats),
        label="part",
    ),
    _read(
        "counter",
        "octavo:host_gap_seconds",
        "Seconds in which the device had work coming and waited for the host.",
        lambda stats, info: stats.steps.host_gap_s,
    ),
    _read(
        "counter",
        "octavo:step_rows",
        "Sequences that took part in steps, summed over the steps.",
        lambda stats, info: stats.steps.num_rows,
    ),
    _read(
        "counter",
        "octavo:step_padded_rows",
        "Rows computed for nothing, to fill the size of a captured graph.",
        lambda stats, info: stats.steps.num_padded_rows,
    ),
    _read(
        "counter",
        "octavo:graph_steps",
        "Steps whose model ran as a captured graph; divide by the steps for the hit rate.",
        lambda stats, info: stats.steps.num_graph_steps,
    ),
    _read(
        "gauge",
        "octavo:last_step_age_seconds",
        "Seconds since the engine's loop last made progress; 0 when it has nothing to do.",
        lambda stats, info: stats.last_step_age_s,
    ),
    _read(
        "gauge",
        "octavo:core_silence_seconds",
        "Seconds since the core's process was last heard of; 0 where the server is that process.",
        lambda stats, info: stats.silence_s,
    ),
)

ITERATION_TOKENS = MetricSpec(
    name="iteration_tokens_total",
    kind="histogram",
    owner="compatible",
    help="Tokens of a step: prompt tokens computed and tokens generated. Read from the core.",
)
CACHE_CONFIG = MetricSpec(
    name="cache_config_info",
    kind="gauge",
    owner="compatible",
    help="Always 1; the labels tell the cache's settings.",
    labels=("block_size", "num_gpu_blocks", "cache_dtype"),
)

TTFT = _histogram(
    "compatible",
    "time_to_first_token_seconds",
    "Seconds from a request's arrival to its first token.",
    TTFT_BUCKETS_S,
)
ITL = _histogram(
    "compatible",
    "inter_token_latency_seconds",
    "Seconds between two tokens of a sequence.",
    ITL_BUCKETS_S,
)
TIME_PER_TOKEN = _histogram(
    "compatible",
    "request_time_per_output_token_seconds",
    "A request's mean seconds between two tokens.",
    ITL_BUCKETS_S,
)
E2E = _histogram(
    "compatible",
    "e2e_request_latency_seconds",
    "Seconds from a request's arrival to its last token.",
    REQUEST_BUCKETS_S,
)
QUEUE_TIME = _histogram(
    "compatible",
    "request_queue_time_seconds",
    "Seconds from a request's arrival to its first step.",
    REQUEST_BUCKETS_S,
)
PREFILL_TIME = _histogram(
    "compatible",
    "request_prefill_time_seconds",
    "Seconds from a request's first step to its first token.",
    REQUEST_BUCKETS_S,
)
DECODE_TIME = _histogram(
    "compatible",
    "request_decode_time_seconds",
    "Seconds from a request's first token to its last.",
    REQUEST_BUCKETS_S,
)
INFERENCE_TIME = _histogram(
    "compatible",
    "request_inference_time_seconds",
    "Seconds from a request's first step to its last token.",
    REQUEST_BUCKETS_S,
)
PROMPT_TOKENS = _histogram(
    "compatible", "request_prompt_tokens", "Prompt tokens of a request.", TOKEN_BUCKETS
)
GENERATION_TOKENS = _histogram(
    "compatible",
    "request_generation_tokens",
    "Tokens generated for a request, over all its sequences.",
    TOKEN_BUCKETS,
)
PARAMS_N = _histogram(
    "compatible", "request_params_n", "Sequences that a request asked for.", COUNT_BUCKETS
)
PARAMS_MAX_TOKENS = _histogram(
    "compatible", "request_params_max_tokens", "Tokens that a request allowed.", TOKEN_BUCKETS
)
REJECTIONS = MetricSpec(
    name="admission_rejections",
    kind="counter",
    owner="compatible",
    help="Requests refused because of load or state: queue_full, loading, draining, engine_dead.",
    labels=("reason",),
)
LOOP_LAG = _histogram(
    "own",
    "event_loop_lag_seconds",
    "How late the server's event loop runs what is due; sampled twice a second.",
    LOOP_LAG_BUCKETS_S,
)
COMPILE_TIME = _histogram(
    "own",
    "grammar_compile_seconds",
    "Seconds that a grammar of structured output took to compile.",
    COMPILE_BUCKETS_S,
)
IN_FLIGHT = MetricSpec(
    name="http_requests_in_flight",
    kind="gauge",
    help="Generation requests that the server holds open.",
)
DRAINING = MetricSpec(
    name="draining", kind="gauge", help="1 from the signal to stop on, when new work is refused."
)
PHASE = MetricSpec(
    name="phase",
    kind="gauge",
    help="1 for the phase that the server is in: loading, ready, leaving, draining, stopping.",
    labels=("phase",),
)
DISCONNECTS = MetricSpec(
    name="client_disconnects",
    kind="counter",
    help="Requests ended because their client went away.",
)
STARTUP = MetricSpec(
    name="startup_seconds",
    kind="gauge",
    help="Seconds that a stage of the start took; total is all of it.",
    labels=("stage",),
)
HTTP_REQUESTS = MetricSpec(
    name="http_requests",
    kind="counter",
    owner="http",
    help="Requests answered, by method, route and class of status.",
    labels=("method", "handler", "status"),
)
HTTP_DURATION = _histogram(
    "http",
    "http_request_duration_seconds",
    "Seconds to the end of the answer, by method and route.",
    HTTP_BUCKETS_S,
    labels=("method", "handler"),
)

SERVER_METRICS: tuple[MetricSpec, ...] = (
    *(TTFT, ITL, TIME_PER_TOKEN, E2E, QUEUE_TIME, PREFILL_TIME, DECODE_TIME, INFERENCE_TIME),
    *(PROMPT_TOKENS, GENERATION_TOKENS, PARAMS_N, PARAMS_MAX_TOKENS, REJECTIONS),
    *(LOOP_LAG, COMPILE_TIME, IN_FLIGHT, DRAINING, PHASE, DISCONNECTS, STARTUP),
    *(HTTP_REQUESTS, HTTP_DURATION),
)


def _of_gpu(name: str, text: str) -> MetricSpec:
    return MetricSpec(name=name, kind="gauge", help=text, labels=("gpu",))


GPU_METRICS: dict[str, MetricSpec] = {
    "utilization": _of_gpu(
        "gpu_utilization_ratio", "Share of the last moments in which a kernel ran on the GPU."
    ),
    "used_bytes": _of_gpu("gpu_memory_used_bytes", "Memory of the GPU in use, by whomever."),
    "total_bytes": _of_gpu("gpu_memory_total_bytes", "Memory of the GPU."),
    "power_w": _of_gpu("gpu_power_watts", "Power that the GPU draws."),
    "temperature_c": _of_gpu("gpu_temperature_celsius", "Temperature of the GPU."),
}
"""By the field of `GpuReading`; a GPU that does not tell it has no sample."""

ALL_METRICS: tuple[MetricSpec, ...] = (
    *CORE_METRICS,
    ITERATION_TOKENS,
    CACHE_CONFIG,
    *SERVER_METRICS,
    *GPU_METRICS.values(),
)
