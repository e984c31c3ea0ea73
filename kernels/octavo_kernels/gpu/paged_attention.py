"""Attention over paged keys and values: the decode kernel, then the prefill kernel."""

import torch

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import decode_attention, decode_config
from octavo_kernels.gpu.kv_write import check_caches
from octavo_kernels.gpu.launch import capability, num_cores
from octavo_kernels.gpu.prefill_attention import prefill_attention, prefill_config
from octavo_kernels.gpu.schedule import with_schedule
from octavo_kernels.metadata import AttentionMetadata, KVScales


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: torch.Tensor | None = None,
    scales: KVScales | None = None,
) -> torch.Tensor:
    """As `ops.paged_attention`."""
    _check(q, k_cache, v_cache, metadata, scales)
    num_kv_heads, page_size, head_dim = k_cache.shape[1:]
    if metadata.schedule is None:
        metadata = with_schedule(
            metadata, num_q_heads=q.shape[1], num_kv_heads=num_kv_heads, window=window
        )
    schedule = metadata.schedule
    assert schedule is not None
    if schedule.window != window:
        raise ValueError(f"scheduled for a window of {schedule.window}, called with {window}")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    tma_possible = _has_tma(q.device) and k_cache.is_contiguous()
    options = AttentionOptions(
        scale=scale, window=window, softcap=softcap, sinks=sinks, scales=scales
    )
    if schedule.decode is not None:
        config = decode_config(
            metadata.num_decode_rows, head_dim, page_size, q.element_size(),
            tma_possible=tma_possible, is_narrow=scales is not None,
        )  # fmt: skip
        decode_attention(
            q, k_cache, v_cache, out, schedule.decode, metadata.block_table, config, options
        )
    if schedule.tiles is not None:
        _prefill(q, k_cache, v_cache, out, schedule.tiles, metadata.block_table, options)
    return out


def _prefill(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    out: torch.Tensor,
    tiles: torch.Tensor,
    block_table: torch.Tensor,
    options: AttentionOptions,
) -> None:
    """By the Gluon kernel where it covers the case, else by the plain one."""
    has_tma = _has_tma(q.device)
    if has_tma and _is_hopper(q.device):
        from octavo_kernels.gpu import hopper_prefill

        if hopper_prefill.can_run(q, k_cache, options):
            hopper_prefill.hopper_prefill_attention(
                q, k_cache, v_cache, out, tiles, block_table, options, num_cores(q.device)
            )
            return
    config = prefill_config(
        q.shape[2], k_cache.shape[2], q.element_size(),
        tma_possible=has_tma and k_cache.is_contiguous(),
    )  # fmt: skip
    prefill_attention(q, k_cache, v_cache, out, tiles, block_table, config, options)


def _check(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    scales: KVScales | None,
) -> None:
    check_caches(k_cache, v_cache)
    if (k_cache.dtype == torch.float8_e4m3fn) != (scales is not None):
        raise ValueError(f"pages of {k_cache.dtype} {'with' if scales else 'without'} scales")
    if q.dim() != 3 or q.stride(-1) != 1 or q.shape[2] != k_cache.shape[3]:
        raise ValueError(f"q {tuple(q.shape)} does not fit caches {tuple(k_cache.shape)}")
    if metadata.block_size != k_cache.shape[2]:
        raise ValueError(f"pages of {k_cache.shape[2]} tokens, metadata says {metadata.block_size}")


def _is_hopper(device: torch.device) -> bool:
    return capability(device)[0] == 9


def _has_tma(device: torch.device) -> bool:
    return device.type == "cuda" and capability(device)[0] >= 9
