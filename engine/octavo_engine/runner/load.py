"""Loads a rank's share of a model, with what its runner needs to know of it.

    load_share            an architecture of the table, by our own layers
    load_eager_fallback   any other, by transformers' modules

Knows no runner and no memory but the weights'.
"""

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from octavo_engine.batch import KVGroup
from octavo_engine.config import EngineConfig
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_ahead import ConfigReading
from octavo_engine.loading.model_files import ModelFiles, load_decoder
from octavo_engine.model_config import ModelConfig, kv_groups
from octavo_engine.models.protocol import Model
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.parallel.shares import head_shares, refuse_impossible
from octavo_engine.progress import Report
from octavo_engine.quantization.scheme import Scheme
from octavo_engine.rope import extended_context_len
from octavo_engine.runner.kv_cache import PageShape
from octavo_engine.runner.sizing import choose_dtype
from octavo_kernels import KVScales

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadedShare:
    """A rank's share of a model, with its weights in place."""

    model: Model
    config: ModelConfig
    """Of the whole model."""
    groups: tuple[KVGroup, ...]
    shape: PageShape
    """Of the rank's pages in the model's dtype."""
    kv_scales: dict[int, KVScales]
    """The checkpoint's own, by layer."""
    context_len: int
    num_q_heads: int
    """The rank's."""


@dataclass(frozen=True, kw_only=True)
class EagerModel:
    """A model with its weights in place, and what the runner needs to know of it."""

    model: Model
    vocab_size: int
    context_len: int
    num_q_heads: int
    original_context_len: int | None
    restart_len: int | None
    groups: tuple[KVGroup, ...]
    shape: PageShape
    """Of pages in the model's dtype."""
    kv_scales: dict[int, KVScales]
    """The checkpoint's own, by layer."""
    group: Group


def load_share(
    config: EngineConfig,
    files: ModelFiles,
    scheme: Scheme | None,
    device: torch.device,
    group: Group,
    report: Report,
    reading: ConfigReading | None,
) -> LoadedShare:
    """Raises ConfigError for settings that cannot work, CheckpointError for a broken model."""
    model_config = files.model_config(reading)
    refuse_impossible(model_config, group.size)
    # A GGUF file is already rounded far below bfloat16: computing in float32 would gain nothing.
    checkpoint_dtype = "bfloat16" if files.is_gguf else model_config.checkpoint_dtype
    dtype = choose_dtype(config.model.dtype, checkpoint_dtype, device)
    context_len = model_context_len(model_config)
    groups = _kv_groups(model_config, config.model.max_model_len or context_len)
    # The kernels for quantised weights take 16-bit inputs; a CPU is faster with dequantised ones.
    keeps_quantized = device.type == "cuda" and dtype.itemsize == 2
    group.prepare(model_config.hidden_size, dtype)
    build = Build(device, dtype, keeps_quantized=keeps_quantized, group=group)
    heads = head_shares(model_config, group.rank, group.size)
    return LoadedShare(
        model=load_decoder(files, model_config, groups, build, scheme, report),
        config=model_config,
        groups=groups,
        shape=PageShape(
            num_kv_heads=heads.num_kv_heads,
            block_size=config.cache.block_size,
            head_dim=model_config.head_dim,
            dtype=dtype,
        ),
        kv_scales=_stored_kv_scales(
            config, files, model_config.num_kv_heads, heads.kv_heads, device
        ),
        context_len=context_len,
        num_q_heads=heads.num_q_heads,
    )


def load_eager_fallback(
    config: EngineConfig, files: ModelFiles, scheme: Scheme | None, device: torch.device
) -> EagerModel:
    """An architecture that is not in the table, by transformers' own modules."""
    from octavo_engine.models.fallback import fallback_groups, load_fallback

    model_type = files.hf_config.model_type
    if scheme is not None or files.is_gguf:
        raise CheckpointError(
            f"{files.name}: model_type {model_type!r} is supported from unquantised folders only"
        )
    if config.cache.kv_cache_dtype != "auto":
        raise ConfigError(
            f"{files.name}: kv_cache_dtype {config.cache.kv_cache_dtype!r} is not supported for "
            f"model_type {model_type!r}, which runs by transformers' modules; only 'auto'"
        )
    checkpoint_dtype = str(files.hf_config.dtype or "float32").removeprefix("torch.")
    dtype = choose_dtype(config.model.dtype, checkpoint_dtype, device)
    model = load_fallback(Path(config.model.path), files.hf_config, Build(device, dtype))
    context_len = files.hf_config.max_position_embeddings
    groups = fallback_groups(model, config.model.max_model_len or context_len)
    facts = model.facts[0]
    return EagerModel(
        model=model,
        vocab_size=files.hf_config.vocab_size,
        context_len=context_len,
        num_q_heads=facts.num_q_heads,
        original_context_len=None,
        restart_len=None,
        groups=groups,
        shape=PageShape(
            num_kv_heads=facts.num_kv_heads,
            block_size=config.cache.block_size,
            head_dim=facts.head_dim,
            dtype=dtype,
        ),
        kv_scales={},
        group=SoloGroup(),
    )


def refuse_shared_fallback(files: ModelFiles, num_ranks: int) -> None:
    """Raises ConfigError: transformers' own modules are not shared."""
    if num_ranks > 1:
        raise ConfigError(
            f"{files.name}: tensor_parallel_size {num_ranks} is not supported for model_type "
            f"{files.raw_config['model_type']!r}, which runs by transformers' modules; only 1"
        )


def model_context_len(config: ModelConfig) -> int:
    """Tokens the model was made for, the extension by scaled positions included."""
    ropes = [layer.rope for layer in config.layers if layer.rope is not None]
    extended = [extended_context_len(rope) for rope in ropes]
    return max([config.max_position_embeddings, *extended])


def _kv_groups(config: ModelConfig, max_model_len: int) -> tuple[KVGroup, ...]:
    """A window that holds the whole context is none: its layers can share pages with full ones."""
    windows = [layer.window for layer in config.layers]
    return kv_groups(
        [None if window is None or window >= max_model_len else window for window in windows]
    )


def _stored_kv_scales(
    config: EngineConfig,
    files: ModelFiles,
    num_kv_heads: int,
    own_kv_heads: slice,
    device: torch.device,
) -> dict[int, KVScales]:
    if config.cache.kv_cache_dtype == "auto":
        if files.scheme is not None and files.scheme.has_kv_scales:
            # Finer than what the checkpoint asks for, but at twice the memory.
            log.warning("kv_cache_not_quantized", hint="--kv-cache-dtype fp8 uses its scales")
        return {}
    return files.kv_scales(num_kv_heads, own_kv_heads, device)
