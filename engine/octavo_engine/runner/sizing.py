"""Decides dtype, context length and number of pages from settings, model and device."""

from dataclasses import dataclass

import torch

from octavo_engine.batch import KVGroup
from octavo_engine.config import EngineConfig
from octavo_engine.errors import ConfigError
from octavo_engine.scheduling.capacity import capacity_tokens

GIB = 2**30
MAX_NUM_SEQS = {"cpu": 32, "cuda": 256}
MAX_NUM_BATCHED_TOKENS = {"cpu": 2048, "cuda": 8192}


@dataclass(frozen=True, kw_only=True)
class Sizes:
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    """The null block included."""
    num_host_blocks: int


def choose_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but torch finds no usable GPU")
    return torch.device(name)


def choose_dtype(asked: str, checkpoint: str, device: torch.device) -> torch.dtype:
    """The dtype of weights, activations and pages.

    auto on a GPU is the checkpoint's own. On a CPU it is float32 unless bfloat16 weights meet
    bfloat16 instructions: float32 holds every 16-bit weight exactly.
    """
    if asked != "auto":
        return _dtype(asked)
    own = _dtype(checkpoint)
    if device.type != "cpu":
        return torch.bfloat16 if own == torch.float32 else own
    return own if own == torch.bfloat16 and has_fast_bfloat16() else torch.float32


def has_fast_bfloat16() -> bool:
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise ConfigError(f"dtype {name!r} is not supported")
    assert isinstance(dtype, torch.dtype)
    return dtype


def choose_sizes(
    config: EngineConfig,
    *,
    model_context_len: int,
    block_bytes: int,
    groups: tuple[KVGroup, ...],
    pages_bytes: int,
    device: torch.device,
) -> Sizes:
    """Raises ConfigError when the context asked for exceeds the model's or the pages."""
    block_size = config.cache.block_size
    num_blocks = pages_bytes // block_bytes
    windows = [group.window for group in groups]
    # The null block is nobody's.
    held_len = capacity_tokens(windows, block_size, num_blocks - 1, model_context_len)
    if held_len < 1:
        raise ConfigError(
            f"{pages_bytes / GIB:.3f} GiB for pages hold {num_blocks} blocks of "
            f"{block_bytes / 2**20:.2f} MiB: too few for one sequence"
        )
    asked = config.model.max_model_len
    if asked is not None and asked > model_context_len:
        raise ConfigError(
            f"max_model_len {asked} is more than the model's context of {model_context_len}"
        )
    if asked is not None and asked > held_len:
        raise ConfigError(
            f"max_model_len {asked} is more than the {held_len} tokens that the pages hold"
        )
    return Sizes(
        max_model_len=asked or held_len,
        max_num_seqs=config.scheduler.max_num_seqs or MAX_NUM_SEQS[device.type],
        num_blocks=num_blocks,
        num_host_blocks=int(config.cache.swap_space_gib * GIB) // block_bytes,
    )


def available_page_bytes(config: EngineConfig, device: torch.device) -> int:
    """Memory for pages, taken after the weights are loaded."""
    if device.type == "cpu":
        return int(config.cache.cpu_kv_cache_gib * GIB)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    reserved_bytes = int(total_bytes * (1.0 - config.cache.gpu_memory_utilization))
    return max(0, free_bytes - reserved_bytes - ACTIVATION_BYTES)


# Eager activations of the largest step; a measured peak takes its place with the graphs.
ACTIVATION_BYTES = 4 * GIB
