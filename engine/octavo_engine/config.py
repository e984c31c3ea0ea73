"""The engine's settings: frozen, nested by owner; each part is given only its own section.

Units are in the names. The one place for defaults: the command line, the offline API and the
reference page are made from these fields. A value out of its range is a ConfigError.
"""

from math import inf
from typing import Literal

import msgspec

from octavo_engine.errors import ConfigError

Device = Literal["auto", "cpu", "cuda"]
LoadFormat = Literal["auto", "dummy"]
DType = Literal["auto", "float32", "float16", "bfloat16"]
KVCacheDType = Literal["auto", "fp8"]

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)


def _must(holds: bool, name: str, be: str, value: object) -> None:
    if not holds:
        raise ConfigError(f"{name} must be {be}, got {value}")


def _must_count(name: str, value: int | None) -> None:
    _must(value is None or value >= 1, name, "1 or more", value)


class ModelSettings(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    """A folder with a Hugging Face checkpoint, or a .gguf file."""
    dtype: DType = "auto"
    """auto: the checkpoint's own, or the fastest on this device that loses nothing against it."""
    quantization: str = "auto"
    """auto: as the checkpoint says. gptq, awq, compressed-tensors, bitsandbytes, mxfp4, none: it
    must be that. fp8, int8: it is that, or its weights are quantised so while they are loaded."""
    max_model_len: int | None = None
    """Tokens of prompt + output; None: the model's own context, as far as the pages can hold it."""
    device: Device = "auto"
    load_format: LoadFormat = "auto"
    """dummy: random weights, of a folder that may hold a config alone."""

    def __post_init__(self) -> None:
        _must_count("max_model_len", self.max_model_len)


class CacheSettings(msgspec.Struct, frozen=True, kw_only=True):
    block_size: int = 64
    """Tokens in a page: 16 to 1024, a power of two."""
    gpu_memory_utilization: float = 0.92
    """Share of the GPU's memory for weights, activations, graphs and pages together."""
    kv_cache_dtype: KVCacheDType = "auto"
    """fp8: keys and values in 8 bits (e4m3) with a scale a head, the checkpoint's or one measured
    at start-up: twice the tokens in the same memory. auto: as the model computes."""
    cpu_kv_cache_gib: float = 2.0
    """Memory for pages on a CPU."""
    prefix_caching: bool = True
    swap_space_gib: float = 0.0
    """Host memory for pages of requests that had to make room."""

    def __post_init__(self) -> None:
        is_size = self.block_size in BLOCK_SIZES
        _must(is_size, "block_size", "a power of two from 16 to 1024", self.block_size)
        share = self.gpu_memory_utilization
        _must(0 < share <= 1, "gpu_memory_utilization", "above 0 and at most 1", share)
        pages = self.cpu_kv_cache_gib
        _must(0 < pages < inf, "cpu_kv_cache_gib", "above 0 and finite", pages)
        swap = self.swap_space_gib
        _must(0 <= swap < inf, "swap_space_gib", "0 or more and finite", swap)


class SchedulerSettings(msgspec.Struct, frozen=True, kw_only=True):
    max_num_seqs: int | None = None
    """Sequences running at once; None: 32 on a CPU, 256 on a GPU."""
    max_num_batched_tokens: int | None = None
    """Token budget of a step; None: 2048 on a CPU, 8192 on a GPU."""
    target_itl_ms: float | None = None
    """When set, prefill in a step shrinks so that running streams keep this inter-token latency."""
    max_queued_requests: int = 2048
    max_queued_tokens: int = 2_000_000
    """Prompt tokens of the requests that wait."""
    priority_ageing_s: float = 10.0
    """Waiting this long is worth one level of a request's priority."""

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_queued_requests",
            "max_queued_tokens",
        ):
            _must_count(name, getattr(self, name))
        target = self.target_itl_ms
        _must(target is None or 0 < target < inf, "target_itl_ms", "above 0 and finite", target)
        ageing = self.priority_ageing_s
        _must(0 < ageing < inf, "priority_ageing_s", "above 0 and finite", ageing)


class ParallelSettings(msgspec.Struct, frozen=True, kw_only=True):
    tensor_parallel_size: int = 1
    """Ranks that share the model, one process each: 1 to 8."""
    rank_timeout_s: float = 60.0
    """A rank that says nothing, or does not end a step, for so long ends the engine."""

    def __post_init__(self) -> None:
        limit = self.rank_timeout_s
        _must(0 < limit < inf, "rank_timeout_s", "above 0 and finite", limit)


class EngineConfig(msgspec.Struct, frozen=True, kw_only=True):
    model: ModelSettings
    cache: CacheSettings = CacheSettings()
    scheduler: SchedulerSettings = SchedulerSettings()
    parallel: ParallelSettings = ParallelSettings()
