"""Makes the runner of one GPU in this order: tables, a probe that measures, pages, graphs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter

import structlog
import torch

from octavo_engine.batch import KVGroup
from octavo_engine.config import EngineConfig
from octavo_engine.cuda.buffers import StepBuffers
from octavo_engine.cuda.decode import Shapes
from octavo_engine.cuda.fused_decoder import fuse
from octavo_engine.cuda.fused_pass import FusedPass
from octavo_engine.cuda.memory import (
    capture_all,
    collector_at_rest,
    compile_kernels,
    measure_budget,
)
from octavo_engine.cuda.mixed import MixedForward
from octavo_engine.cuda.rehearsal import Rehearsal, rehearsal_of
from octavo_engine.cuda.row_table import DeviceRowTable
from octavo_engine.cuda.runner import CudaRunner
from octavo_engine.errors import ConfigError
from octavo_engine.memory_facts import NUM_PROBE_BLOCKS
from octavo_engine.messages import EngineInfo
from octavo_engine.model_config import ModelConfig, original_context_len, restart_len
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.protocol import Model
from octavo_engine.parallel.group import Group, SoloGroup
from octavo_engine.progress import Report, silent
from octavo_engine.runner.kv_cache import KVCache, PageShape, block_bytes, stored_shape
from octavo_engine.runner.kv_scales import choose_kv_scales
from octavo_engine.runner.rope_tables import RopeTables
from octavo_engine.runner.sizing import MAX_NUM_SEQS, Sizes, choose_sizes
from octavo_engine.scheduling.limits import GPU_BATCHED_TOKENS
from octavo_engine.structured.compiler import GrammarCompiler
from octavo_kernels import KVScales

log = structlog.get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class LoadedModel:
    """A model with its weights in place."""

    model: Model
    config: ModelConfig
    groups: tuple[KVGroup, ...]
    shape: PageShape
    """Of pages in the model's dtype."""
    context_len: int
    compiler: GrammarCompiler | None = None
    """For structured output."""
    group: Group = field(default_factory=SoloGroup)
    """The ranks that share the model."""
    kv_scales: Mapping[int, KVScales] = field(default_factory=dict)
    """The checkpoint's own, by layer."""


def build_cuda_runner(
    config: EngineConfig,
    loaded: LoadedModel,
    device: torch.device,
    *,
    report: Report = silent,
) -> CudaRunner:
    """Raises ConfigError when the memory does not hold what the settings ask for."""
    with collector_at_rest():
        return _build(config, loaded, device, report)


def _build(
    config: EngineConfig, loaded: LoadedModel, device: torch.device, report: Report
) -> CudaRunner:
    started_s = perf_counter()
    report("memory", 0.0)
    weights_bytes = torch.cuda.memory_allocated(device)
    parts = RunnerParts(config, loaded, device)
    probe = parts.runner(_probe_sizes(parts))
    compile_kernels(probe, device, loaded.group)
    compiled_s = perf_counter()
    budget = measure_budget(
        probe,
        weights_bytes=weights_bytes,
        max_step_tokens=_max_step_tokens(config, parts.max_num_seqs),
        utilization=config.cache.gpu_memory_utilization,
        device=device,
    )
    measured_s = perf_counter()
    budget.log()
    sizes = choose_sizes(
        config,
        model_context_len=loaded.context_len,
        block_bytes=block_bytes(loaded.groups, parts.page_shape),
        groups=loaded.groups,
        # All ranks have the same pages: as many as fit where there is the least memory.
        pages_bytes=loaded.group.smallest(budget.pages_bytes),
        device=device,
    )
    runner = parts.runner(sizes)
    report("graphs", 0.0)
    capture_all(runner, device)
    torch.cuda.synchronize(device)
    log.info(
        "gpu_runner_ready",
        num_blocks=sizes.num_blocks,
        max_model_len=sizes.max_model_len,
        has_static_decode=parts.has_static_decode,
        is_fused=parts.fused is not None,
        kv_cache_dtype=str(parts.page_shape.dtype).removeprefix("torch."),
        compiled_s=f"{compiled_s - started_s:.2f}",
        measured_s=f"{measured_s - compiled_s:.2f}",
        captured_s=f"{perf_counter() - measured_s:.2f}",
    )
    return runner


class RunnerParts:
    """What the probe and the real runner share: everything but the pages."""

    def __init__(
        self,
        config: EngineConfig,
        loaded: LoadedModel,
        device: torch.device,
    ) -> None:
        self._loaded = loaded
        self._device = device
        self.max_num_seqs = config.scheduler.max_num_seqs or MAX_NUM_SEQS["cuda"]
        self.max_model_len = config.model.max_model_len or loaded.context_len
        self._block_size = config.cache.block_size
        self._table = DeviceRowTable(
            max_num_rows=self.max_num_seqs,
            max_model_len=self.max_model_len,
            num_groups=len(loaded.groups),
            block_size=self._block_size,
            device=device,
        )
        self.page_shape = stored_shape(loaded.shape, config.cache.kv_cache_dtype)
        self._kv_scales: list[KVScales] | None = None
        if self.page_shape != loaded.shape:
            self._kv_scales = _kv_scales(loaded, device)
        self._buffers = StepBuffers(
            self._table,
            max_num_rows=self.max_num_seqs,
            hidden_size=loaded.config.hidden_size,
            dtype=loaded.shape.dtype,
            device=device,
        )
        self._ropes = RopeTables(
            loaded.model.ropes, max_model_len=self.max_model_len, device=device
        )
        model = loaded.model
        self.fused: FusedPass | None = None
        if isinstance(model, Decoder) and device.type == "cuda":
            self.fused = fuse(model)
        # Ranks take turns at what their sums go by: each pass has to have as many as the others.
        self._rehearsal: Rehearsal | None = None
        if isinstance(model, Decoder) and loaded.group.size == 1:
            self._rehearsal = rehearsal_of(model, is_fused=self.fused is not None)
        # Experts that stay quantised and rotations that follow a sequence's length read back.
        reads_back = isinstance(model, Decoder) and model.reads_back
        self.has_static_decode = not reads_back and not self._ropes.needs_seq_lens

    def _mixed(self, cache: KVCache, shapes: Shapes) -> MixedForward | None:
        if not self.has_static_decode:
            return None
        return MixedForward(
            self._loaded.model,
            cache.layers,
            self._ropes,
            shapes,
            max_num_rows=self.max_num_seqs,
            num_columns=self._table.block_tables[0].shape[1],
            hidden_size=self._loaded.config.hidden_size,
            dtype=self._loaded.shape.dtype,
            device=self._device,
            rehearsal=self._rehearsal,
        )

    def runner(self, sizes: Sizes) -> CudaRunner:
        loaded = self._loaded
        shapes = Shapes(
            groups=loaded.groups,
            num_q_heads=loaded.config.num_heads // loaded.group.size,
            num_kv_heads=loaded.shape.num_kv_heads,
            block_size=self._block_size,
            max_model_len=sizes.max_model_len,
        )
        cache = KVCache(
            loaded.groups,
            self.page_shape,
            num_blocks=sizes.num_blocks,
            num_host_blocks=sizes.num_host_blocks,
            device=self._device,
            scales=self._kv_scales,
        )
        return CudaRunner(
            loaded.model,
            info=EngineInfo(
                vocab_size=loaded.config.vocab_size,
                max_model_len=sizes.max_model_len,
                block_size=self._block_size,
                num_blocks=sizes.num_blocks,
                max_num_seqs=sizes.max_num_seqs,
                dtype=str(loaded.shape.dtype).removeprefix("torch."),
                device=str(self._device),
                original_context_len=original_context_len(loaded.config),
                restart_len=restart_len(loaded.config),
            ),
            shapes=shapes,
            cache=cache,
            num_host_blocks=sizes.num_host_blocks,
            table=self._table,
            buffers=self._buffers,
            ropes=self._ropes,
            fused=self.fused,
            rehearsal=self._rehearsal,
            mixed=self._mixed(cache, shapes),
            has_static_decode=self.has_static_decode,
            device=self._device,
            compiler=loaded.compiler,
            group=loaded.group,
        )


def _kv_scales(loaded: LoadedModel, device: torch.device) -> list[KVScales]:
    return choose_kv_scales(
        loaded.kv_scales,
        loaded.model,
        loaded.groups,
        loaded.shape,
        num_q_heads=loaded.config.num_heads // loaded.group.size,
        vocab_size=loaded.config.vocab_size,
        context_len=loaded.context_len,
        device=device,
    )


def _probe_sizes(parts: RunnerParts) -> Sizes:
    return Sizes(
        max_model_len=parts.max_model_len,
        max_num_seqs=parts.max_num_seqs,
        num_blocks=NUM_PROBE_BLOCKS,
        num_host_blocks=0,
    )


def _max_step_tokens(config: EngineConfig, max_num_seqs: int) -> int:
    asked = config.scheduler.max_num_batched_tokens
    if asked is not None and asked <= max_num_seqs:
        raise ConfigError(
            f"max_num_batched_tokens ({asked}) must exceed max_num_seqs ({max_num_seqs})"
        )
    return asked or max(GPU_BATCHED_TOKENS, max_num_seqs + 1)
