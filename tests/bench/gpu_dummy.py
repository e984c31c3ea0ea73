"""A model of a given shape with random weights made on the GPU, and the engine's core around it."""

import gc
import os
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch
from tests.bench.gpu_quantized import random_matrix, scheme_named

from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    KVCacheDType,
    ModelSettings,
    SchedulerSettings,
)
from octavo_engine.core.engine import EngineCore
from octavo_engine.core.in_process import settle_process
from octavo_engine.cuda.build import LoadedModel, build_cuda_runner
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_file import parse_config
from octavo_engine.model_config import kv_groups
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import build_model_config
from octavo_engine.quantization.checkpoint import QuantizedCheckpoint
from octavo_engine.runner.kv_cache import PageShape

INITIALIZER_RANGE = 0.02


def dummy_decoder(
    raw_config: dict[str, Any], device: torch.device, quantization: str | None = None
) -> Decoder:
    """Matrices are small normal numbers, norms are ones: activations stay in a usual range.

    quantization: see `gpu_quantized.scheme_named`.
    """
    config = build_model_config(parse_config(raw_config, "the benchmark's config"))
    groups = kv_groups([layer.window for layer in config.layers])
    quantized = None
    if quantization is not None:
        quantized = QuantizedCheckpoint(scheme_named(quantization), {}, device)
    build = Build(device, torch.bfloat16, quantization=quantized, keeps_quantized=True)
    decoder = Decoder(config, groups, build)
    torch.manual_seed(0)
    for slot in decoder.slots():
        if quantization is not None and slot.write_quantized is not None:
            slot.write_quantized(random_matrix(quantization, slot.shape, device))
            continue
        weight = torch.empty(slot.shape, dtype=torch.bfloat16, device=device)
        slot.write(weight.normal_(0, INITIALIZER_RANGE) if weight.dim() > 1 else weight.fill_(1))
    decoder.finish()
    torch.cuda.empty_cache()
    if quantized is not None:
        quantized.log_memory()
    return decoder


def make_core(
    raw_config: dict[str, Any],
    *,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int = 8192,
    block_size: int = 64,
    quantization: str | None = None,
    kv_cache_dtype: KVCacheDType = "auto",
) -> tuple[EngineCore, dict[str, float]]:
    """The core and the seconds of its stages."""
    # An earlier core is among what was frozen; its memory must not count as this one's weights.
    gc.unfreeze()
    gc.collect()
    torch.cuda.empty_cache()
    device = torch.device("cuda", torch.cuda.current_device())
    started_s = perf_counter()
    torch.zeros(1, device=device)
    context_s = perf_counter()
    decoder = dummy_decoder(raw_config, device, quantization)
    torch.cuda.synchronize()
    weights_s = perf_counter()
    config = decoder.config
    loaded = LoadedModel(
        model=decoder,
        config=config,
        groups=kv_groups([layer.window for layer in config.layers]),
        shape=PageShape(
            num_kv_heads=config.num_kv_heads,
            block_size=block_size,
            head_dim=config.head_dim,
            dtype=torch.bfloat16,
        ),
        context_len=config.max_position_embeddings,
    )
    scheduler = SchedulerSettings(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        max_queued_requests=100_000,
    )
    engine_config = EngineConfig(
        model=ModelSettings(path="dummy", max_model_len=max_model_len),
        cache=CacheSettings(block_size=block_size, kv_cache_dtype=kv_cache_dtype),
        scheduler=scheduler,
    )
    runner = build_cuda_runner(engine_config, loaded, device)
    core = EngineCore(runner, scheduler)
    settle_process()  # as the engine does: else one step waits 0.2 s for the collector
    seconds = {
        "context_s": context_s - started_s,
        "weights_s": weights_s - context_s,
        "runner_s": perf_counter() - weights_s,
    }
    return core, seconds


def commit_of_checkout() -> str:
    """The commit, given by the environment where the files travel without their history."""
    given = os.environ.get("OCTAVO_COMMIT")
    if given:
        return given
    head = Path(".git/HEAD")
    if not head.is_file():
        return "unknown"
    text = head.read_text().strip()
    reference = Path(".git") / text.removeprefix("ref: ")
    return (reference.read_text() if reference.is_file() else text).strip()[:12]


def write_config(raw_config: dict[str, Any]) -> Path:
    """A folder with the config alone, for engines that make their own dummy weights."""
    folder = Path(tempfile.mkdtemp(prefix="octavo-bench-"))
    (folder / "config.json").write_bytes(msgspec.json.encode(raw_config))
    return folder
