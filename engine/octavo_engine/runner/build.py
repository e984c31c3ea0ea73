"""Makes the runner of a model: device, dtype, weights, pages, context, in this order."""

from dataclasses import dataclass
from pathlib import Path

import structlog
import torch

from octavo_engine.batch import KVGroup, Runner
from octavo_engine.config import EngineConfig
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_ahead import ConfigReading
from octavo_engine.loading.model_files import ModelFiles, load_decoder, open_model
from octavo_engine.messages import EngineInfo
from octavo_engine.model_config import ModelConfig, kv_groups, original_context_len, restart_len
from octavo_engine.models.protocol import Model
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.parallel.shares import head_shares, refuse_impossible
from octavo_engine.progress import Report, silent
from octavo_engine.quantization.choose import choose_scheme
from octavo_engine.quantization.scheme import Scheme
from octavo_engine.rope import extended_context_len
from octavo_engine.runner.inputs import InputsBuilder
from octavo_engine.runner.kv_cache import KVCache, PageShape, block_bytes, stored_shape
from octavo_engine.runner.kv_scales import choose_kv_scales
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.runner.sizing import (
    Sizes,
    available_page_bytes,
    choose_device,
    choose_dtype,
    choose_sizes,
)
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.text.tokenizer import load_tokenizer
from octavo_kernels import KVScales, compile_ahead, release_threads

log = structlog.get_logger(__name__)


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


@dataclass(frozen=True, kw_only=True)
class _Share:
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


def build_runner(
    config: EngineConfig,
    compiler: GrammarCompiler | None = None,
    report: Report = silent,
    *,
    group: Group | None = None,
    device: torch.device | None = None,
    reading: ConfigReading | None = None,
) -> Runner:
    """Loads the model, or a rank's share of it, and takes the memory for its pages.

    compiler: the one for structured output that the caller shares; else the runner has its own.
    group, device: the ranks that build their runners at the same time, and this one's device; None:
    this is the only rank. reading: of the model's config, by another process. Raises ConfigError
    for settings that cannot work, CheckpointError for a broken model.
    """
    group = group or SoloGroup()
    _refuse_other_size(config, group)
    compiler = compiler or GrammarCompiler(lambda: load_tokenizer(config.model.path))
    device = device or choose_device(config.model.device)
    files = open_model(config.model.path, config.model.load_format)
    scheme = choose_scheme(config.model.quantization, files.scheme, is_gguf=files.is_gguf)
    if not files.is_in_table:
        refuse_shared_fallback(files, group.size)
        fallback = _load_fallback(config, files, scheme, device)
        return _eager_runner(config, fallback, compiler, device)
    share = _load_share(config, files, scheme, device, group, report, reading)
    if device.type == "cuda":
        from octavo_engine.cuda.build import LoadedModel, build_cuda_runner

        loaded = LoadedModel(
            model=share.model,
            config=share.config,
            groups=share.groups,
            shape=share.shape,
            kv_scales=share.kv_scales,
            context_len=share.context_len,
            compiler=compiler,
            group=group,
        )
        return build_cuda_runner(config, loaded, device, report=report)
    report("memory", 0.0)
    eager = EagerModel(
        model=share.model,
        vocab_size=share.config.vocab_size,
        context_len=share.context_len,
        num_q_heads=share.num_q_heads,
        original_context_len=original_context_len(share.config),
        restart_len=restart_len(share.config),
        groups=share.groups,
        shape=share.shape,
        kv_scales=share.kv_scales,
        group=group,
    )
    return _eager_runner(config, eager, compiler, device)


def _load_share(
    config: EngineConfig,
    files: ModelFiles,
    scheme: Scheme | None,
    device: torch.device,
    group: Group,
    report: Report,
    reading: ConfigReading | None,
) -> _Share:
    """Of an architecture that is in the table."""
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
    return _Share(
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


def _load_fallback(
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


def _eager_runner(
    config: EngineConfig, eager: EagerModel, compiler: GrammarCompiler, device: torch.device
) -> ModelRunner:
    shape = stored_shape(eager.shape, config.cache.kv_cache_dtype)
    sizes = choose_sizes(
        config,
        model_context_len=eager.context_len,
        block_bytes=block_bytes(eager.groups, shape),
        # Window layers give their pages back; the scheduler counts what they keep.
        num_groups=max(1, sum(group.window is None for group in eager.groups)),
        # All ranks have the same pages: as many as fit where there is the least memory.
        pages_bytes=eager.group.smallest(available_page_bytes(config, device)),
        device=device,
    )
    _log_sizes(sizes, shape, eager.groups, device)
    compile_ahead(
        device,
        eager.shape.dtype,
        num_q_heads=eager.num_q_heads,
        num_kv_heads=eager.shape.num_kv_heads,
        head_dim=eager.shape.head_dim,
    )
    runner = ModelRunner(
        eager.model,
        info=EngineInfo(
            vocab_size=eager.vocab_size,
            max_model_len=sizes.max_model_len,
            block_size=config.cache.block_size,
            num_blocks=sizes.num_blocks,
            max_num_seqs=sizes.max_num_seqs,
            dtype=str(eager.shape.dtype).removeprefix("torch."),
            device=str(device),
            original_context_len=eager.original_context_len,
            restart_len=eager.restart_len,
        ),
        kv_groups=eager.groups,
        cache=KVCache(
            eager.groups,
            shape,
            num_blocks=sizes.num_blocks,
            num_host_blocks=sizes.num_host_blocks,
            device=device,
            scales=_kv_scales(eager, device) if shape != eager.shape else None,
        ),
        num_host_blocks=sizes.num_host_blocks,
        inputs=InputsBuilder(
            eager.groups,
            num_q_heads=eager.num_q_heads,
            num_kv_heads=eager.shape.num_kv_heads,
            block_size=config.cache.block_size,
            device=device,
        ),
        device=device,
        compiler=compiler,
        group=eager.group,
    )
    release_threads(device)
    return runner


def _kv_scales(eager: EagerModel, device: torch.device) -> list[KVScales]:
    return choose_kv_scales(
        eager.kv_scales,
        eager.model,
        eager.groups,
        eager.shape,
        num_q_heads=eager.num_q_heads,
        vocab_size=eager.vocab_size,
        context_len=eager.context_len,
        device=device,
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


def _refuse_other_size(config: EngineConfig, group: Group) -> None:
    asked = config.parallel.tensor_parallel_size
    if asked != group.size:
        raise ConfigError(f"tensor_parallel_size {asked} needs as many ranks, not {group.size}")


def refuse_shared_fallback(files: ModelFiles, num_ranks: int) -> None:
    """Raises ConfigError: transformers' own modules are not shared."""
    if num_ranks > 1:
        raise ConfigError(
            f"{files.name}: tensor_parallel_size {num_ranks} is not supported for model_type "
            f"{files.raw_config['model_type']!r}, which runs by transformers' modules; only 1"
        )


def _log_sizes(
    sizes: Sizes, shape: PageShape, groups: tuple[KVGroup, ...], device: torch.device
) -> None:
    log.info(
        "memory_planned",
        device=str(device),
        kv_cache_dtype=str(shape.dtype).removeprefix("torch."),
        num_blocks=sizes.num_blocks,
        num_host_blocks=sizes.num_host_blocks,
        block_bytes=block_bytes(groups, shape),
        num_kv_groups=len(groups),
        max_model_len=sizes.max_model_len,
        max_num_seqs=sizes.max_num_seqs,
    )
