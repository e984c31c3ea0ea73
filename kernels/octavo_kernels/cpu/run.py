"""Runs an op of a CPU by its compiled kernel where that covers the case, else by its reference.

numba is loaded when the first op in bfloat16 asks, and kernels are compiled then: seconds the first
time on a machine, tenths of a second from numba's cache. Arguments and results as in `ops`.
"""

import functools
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import torch

from octavo_kernels.metadata import AttentionMetadata, AttentionRule, KVScales, SamplingTensors
from octavo_kernels.reference import paged_attention as attention
from octavo_kernels.reference.kv_write import kv_write
from octavo_kernels.reference.rms_norm import rms_norm as plain_rms_norm
from octavo_kernels.reference.rope import apply_rope
from octavo_kernels.reference.sampling import sample as plain_sample

if TYPE_CHECKING:
    from octavo_kernels.cpu.parallel import Kernel, ThreadPool
    from octavo_kernels.cpu.tiles import Pinned

SERIAL_NUM_TOKENS = 4
"""Up to so many tokens one thread is done before another has begun, even one that waits awake."""


@dataclass(frozen=True)
class Compiled:
    pool: "ThreadPool"
    rms_norm: "Kernel"
    rope_kv_write: "Kernel"
    argmax: "Kernel"


@functools.cache
def compiled() -> Compiled | None:
    """None where numba, or the OpenMP whose threads the kernels share, is missing."""
    if find_spec("numba") is None:
        return None
    from octavo_kernels.cpu.argmax import argmax
    from octavo_kernels.cpu.parallel import Kernel, MissingOpenMP, ThreadPool
    from octavo_kernels.cpu.rms_norm import rms_norm
    from octavo_kernels.cpu.rope_kv_write import rope_kv_write

    try:
        pool = ThreadPool()
    except MissingOpenMP:
        return None
    return Compiled(pool, Kernel(rms_norm), Kernel(rope_kv_write), Kernel(argmax))


@dataclass(frozen=True)
class DecodeKernel:
    kernel: "Kernel"
    configuration: "Pinned | None"
    """Of the matrix unit, where it is used."""


@functools.cache
def decode_kernel(num_queries: int, head_dim: int, *, by_tiles: bool) -> DecodeKernel:
    from octavo_kernels.cpu.parallel import Kernel

    if by_tiles:
        from octavo_kernels.cpu.tile_attention import configuration, make_tile_attention
        from octavo_kernels.cpu.tiles import Pinned

        kernel = Kernel(make_tile_attention(num_queries, head_dim))
        return DecodeKernel(kernel, Pinned(configuration(num_queries)))
    from octavo_kernels.cpu.decode_attention import make_decode_attention

    return DecodeKernel(Kernel(make_decode_attention(num_queries, head_dim)), None)


def _decode_kernel(num_queries: int, head_dim: int) -> DecodeKernel:
    from octavo_kernels.cpu.tiles import has_tiles

    by_tiles = head_dim % 32 == 0 and has_tiles()
    return decode_kernel(num_queries, head_dim, by_tiles=by_tiles)


def compile_ahead(*, num_q_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """So that the first step of a bfloat16 model does not wait for it."""
    if compiled() is not None:
        _decode_kernel(num_q_heads // num_kv_heads, head_dim)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    tensors = (x, weight) if residual is None else (x, weight, residual)
    kernels = compiled() if all(_is_plain(tensor) for tensor in tensors) else None
    if kernels is None:
        return plain_rms_norm(x, weight, eps, residual=residual, weight_offset=weight_offset)
    from octavo_kernels.cpu.words import number

    size = x.shape[-1]
    num_tokens = x.numel() // size
    y = torch.empty_like(x)
    total = y if residual is None else torch.empty_like(x)
    words = (
        num_tokens, size, x.data_ptr(), weight.data_ptr(), y.data_ptr(),
        0 if residual is None else residual.data_ptr(), total.data_ptr(),
        number(eps), number(weight_offset),
    )  # fmt: skip
    kernels.pool.run(kernels.rms_norm, words, _num_threads(num_tokens))
    return y if residual is None else (y, total)


def rope_kv_write(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    interleaved: bool,
    cache_rows: torch.Tensor | None,
    scales: KVScales | None = None,
) -> None:
    """Without QK-norm."""
    is_covered = (
        _has_plain_heads(q)
        and _has_plain_heads(k)
        and _has_plain_heads(v)
        and _is_plain(k_cache)
        and _is_plain(v_cache)
        and cos.dtype == torch.float32
        and not interleaved
    )
    kernels = compiled() if is_covered else None
    if kernels is None:
        apply_rope(q, k, cos, sin, positions, interleaved=interleaved)
        kv_write(k, v, k_cache, v_cache, slots, cache_rows, scales)
        return
    cos, sin, positions, slots = (x.contiguous() for x in (cos, sin, positions, slots))
    num_tokens, num_q, head_dim = q.shape
    words = (
        num_tokens, num_q, k.shape[1], head_dim, k_cache.shape[2], cos.shape[1],
        q.data_ptr(), k.data_ptr(), v.data_ptr(), q.stride(0), k.stride(0), v.stride(0),
        k_cache.data_ptr(), v_cache.data_ptr(), cos.data_ptr(), sin.data_ptr(),
        positions.data_ptr(), slots.data_ptr(),
    )  # fmt: skip
    kernels.pool.run(kernels.rope_kv_write, words, _num_threads(num_tokens))


def paged_attention(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    rule: AttentionRule,
) -> torch.Tensor:
    kernels = None
    is_covered = rule.softcap is None and rule.sinks is None and q.shape[2] % 2 == 0
    if metadata.num_decode_rows and is_covered and _has_plain_heads(q):
        kernels = compiled() if _is_plain(k_cache) and _is_plain(v_cache) else None
    if kernels is None:
        return attention.paged_attention(q, k_cache, v_cache, metadata, rule)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _decode(kernels.pool, q, k_cache, v_cache, metadata, rule, out)
    attention.attend_other_rows(q, k_cache, v_cache, metadata, rule, out)
    return out


def _decode(
    pool: "ThreadPool",
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    metadata: AttentionMetadata,
    rule: AttentionRule,
    out: torch.Tensor,
) -> None:
    """The first rows of out[T, Hq, D], of those that decode."""
    from octavo_kernels.cpu.words import number

    num_kv_heads, block_size, head_dim = k_cache.shape[1:]
    block_table, seq_lens = metadata.block_table.contiguous(), metadata.seq_lens.contiguous()
    kernel = _decode_kernel(q.shape[1] // num_kv_heads, head_dim)
    configuration = kernel.configuration
    words = (
        metadata.num_decode_rows, num_kv_heads, block_size, block_table.shape[1], rule.window or 0,
        q.data_ptr(), q.stride(0), k_cache.data_ptr(), v_cache.data_ptr(),
        block_table.data_ptr(), seq_lens.data_ptr(), out.data_ptr(), number(rule.scale),
        0 if configuration is None else configuration.address,
    )  # fmt: skip
    pool.run(kernel.kernel, words, torch.get_num_threads())


def sample(logits: torch.Tensor, params: SamplingTensors) -> torch.Tensor:
    kernels = compiled() if params.all_greedy and _is_plain(logits) else None
    if kernels is None:
        return plain_sample(logits, params)
    ids = torch.empty(len(logits), dtype=torch.int64)
    words = (*logits.shape, logits.data_ptr(), ids.data_ptr())
    kernels.pool.run(kernels.argmax, words, torch.get_num_threads())
    return ids


def _num_threads(num_tokens: int) -> int:
    return 1 if num_tokens <= SERIAL_NUM_TOKENS else torch.get_num_threads()


def _is_plain(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.is_contiguous()


def _has_plain_heads(x: torch.Tensor) -> bool:
    """x[T, H, D] in bfloat16: the heads of a token lie side by side."""
    return x.dtype == torch.bfloat16 and x.stride(2) == 1 and x.stride(1) == x.shape[2]
