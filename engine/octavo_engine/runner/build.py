"""Makes the runner of a model, which `load` loads: device, weights, pages, in this order."""

import structlog
import torch

from octavo_engine.batch import KVGroup, Runner
from octavo_engine.config import EngineConfig
from octavo_engine.errors import ConfigError
from octavo_engine.loading.config_ahead import ConfigReading
from octavo_engine.loading.model_files import open_model
from octavo_engine.messages import EngineInfo
from octavo_engine.model_config import original_context_len, restart_len
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.progress import Report, silent
from octavo_engine.quantization.choose import choose_scheme
from octavo_engine.runner.inputs import InputsBuilder
from octavo_engine.runner.kv_cache import KVCache, PageShape, block_bytes, stored_shape
from octavo_engine.runner.kv_scales import choose_kv_scales
from octavo_engine.runner.load import (
    EagerModel,
    load_eager_fallback,
    load_share,
    refuse_shared_fallback,
)
from octavo_engine.runner.model_runner import ModelRunner
from octavo_engine.runner.sizing import (
    Sizes,
    available_page_bytes,
    choose_device,
    choose_sizes,
)
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_engine.text.tokenizer import load_tokenizer
from octavo_kernels import KVScales, compile_ahead, release_threads

log = structlog.get_logger(__name__)


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
        fallback = load_eager_fallback(config, files, scheme, device)
        return _eager_runner(config, fallback, compiler, device)
    share = load_share(config, files, scheme, device, group, report, reading)
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


def _eager_runner(
    config: EngineConfig, eager: EagerModel, compiler: GrammarCompiler, device: torch.device
) -> ModelRunner:
    shape = stored_shape(eager.shape, config.cache.kv_cache_dtype)
    sizes = choose_sizes(
        config,
        model_context_len=eager.context_len,
        block_bytes=block_bytes(eager.groups, shape),
        groups=eager.groups,
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


def _refuse_other_size(config: EngineConfig, group: Group) -> None:
    asked = config.parallel.tensor_parallel_size
    if asked != group.size:
        raise ConfigError(f"tensor_parallel_size {asked} needs as many ranks, not {group.size}")


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
