"""The public ops: on a CPU the reference, or numba in bfloat16; on a GPU the Triton kernel.

Triton is imported by the first call on a GPU tensor: a CPU-only process never loads it. In shapes:
T tokens of the step, R rows, Hq and Hkv heads, D head dimension, N vocabulary.
"""

from collections.abc import Sequence
from typing import overload

import torch

from octavo_kernels.logit_changes import LogitChanges
from octavo_kernels.metadata import AttentionMetadata, AttentionRule, KVScales, SamplingTensors


@overload
def rms_norm(
    x: torch.Tensor, weight: torch.Tensor, eps: float, *, weight_offset: float = 0.0
) -> torch.Tensor: ...


@overload
def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]: ...


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Normalises x[..., H] to unit mean square and scales by (weight[H] + weight_offset).

    With a residual (shape and dtype of x) returns (y, x + residual), y being the norm of the sum as
    rounded to x.dtype. Statistics are float32.
    """
    if x.is_cpu:
        from octavo_kernels.cpu.run import rms_norm as run
    else:
        from octavo_kernels.gpu.rms_norm import rms_norm as run
    return run(x, weight, eps, residual=residual, weight_offset=weight_offset)


def rms_norm_into(
    out: torch.Tensor,
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    weight_offset: float = 0.0,
) -> None:
    """`rms_norm` of x[..., H] into out, contiguous and of the same shape and dtype."""
    if x.is_cpu:
        out.copy_(rms_norm(x, weight, eps, weight_offset=weight_offset))
        return
    from octavo_kernels.gpu.rms_norm import rms_norm as run

    run(x, weight, eps, weight_offset=weight_offset, out=out)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2I] -> [T, I]: silu(first half) * second half, in float32, rounded once."""
    if gate_up.is_cpu:
        from octavo_kernels.reference.gated_mul import silu_mul as run
    else:
        from octavo_kernels.gpu.gated_mul import silu_mul as run
    return run(gate_up)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """[T, 2I] -> [T, I]: gelu (tanh formula) of the first half * second half, as silu_mul."""
    if gate_up.is_cpu:
        from octavo_kernels.reference.gated_mul import gelu_tanh_mul as run
    else:
        from octavo_kernels.gpu.gated_mul import gelu_tanh_mul as run
    return run(gate_up)


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    """Rotates the first R dimensions of q[T, Hq, D] and k[T, Hkv, D] in place.

    cos and sin are float32 [P, R/2] tables by position with any attention scaling folded in;
    positions[T] < P. Dimension i is paired with i + R/2, or 2i with 2i + 1 when interleaved. q and
    k may be strided views (of a packed projection) as long as D is contiguous.
    """
    if q.is_cpu:
        from octavo_kernels.reference.rope import apply_rope as run
    else:
        from octavo_kernels.gpu.rope import apply_rope as run
    run(q, k, cos, sin, positions, interleaved=interleaved)


def kv_write(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
    *,
    cache_rows: torch.Tensor | None = None,
    scales: KVScales | None = None,
) -> None:
    """Writes k, v[T, Hkv, D] into caches[num_blocks, Hkv, block_size, D] at slots[T] int64.

    slot = block id * block_size + offset in the block; a negative slot is skipped. The others
    differ from each other. A value that is no finite number is written as 0. cache_rows:
    `plan_kv_write` of the slots. scales: of caches in e4m3.
    """
    if k.is_cpu:
        from octavo_kernels.reference.kv_write import kv_write as write

        write(k, v, k_cache, v_cache, slots, cache_rows, scales)
        return
    from octavo_kernels.gpu.kv_write import kv_write as run

    run(k, v, k_cache, v_cache, slots, scales)


def plan_kv_write(
    slots: torch.Tensor, *, num_kv_heads: int, block_size: int
) -> torch.Tensor | None:
    """What all layers of a KV group need of slots[T], none of them negative, to write on a CPU.

    Optional: without it `kv_write` does the same in each layer. None on a GPU.
    """
    if not slots.is_cpu:
        return None
    from octavo_kernels.reference.kv_write import rows_of_slots

    return rows_of_slots(slots, num_kv_heads=num_kv_heads, block_size=block_size)


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
    interleaved: bool = False,
    qk_norm: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 0.0,
    cache_rows: torch.Tensor | None = None,
    scales: KVScales | None = None,
) -> None:
    """`apply_rope` on q (in place) and k, then `kv_write` of the rotated k and of v, in one pass.

    With qk_norm, the weights [D] of q's and of k's norm, each head goes through `rms_norm` first.
    Afterwards k itself may or may not be rotated: read it from the cache.
    """
    if q.is_cpu:
        from octavo_kernels.cpu.run import rope_kv_write as rotate_and_write

        if qk_norm is not None:
            q.copy_(rms_norm(q, qk_norm[0], eps))
            k = rms_norm(k, qk_norm[1], eps)
        rotate_and_write(
            q, k, v, cos, sin, positions, k_cache, v_cache, slots,
            interleaved=interleaved, cache_rows=cache_rows, scales=scales,
        )  # fmt: skip
        return
    from octavo_kernels.gpu.rope import rope_kv_write as run

    run(
        q, k, v, cos, sin, positions, k_cache, v_cache, slots,
        interleaved=interleaved, qk_norm=qk_norm, eps=eps, scales=scales,
    )  # fmt: skip


def compile_ahead(
    device: torch.device,
    dtype: torch.dtype,
    *,
    num_q_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> None:
    """Compiles for a CPU what the first step would wait for; a GPU's runner captures instead."""
    if device.type == "cpu" and dtype == torch.bfloat16:
        from octavo_kernels.cpu.run import compile_ahead as run

        run(num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)


def release_threads(device: torch.device) -> None:
    """After the calling thread's last work on the device: on a CPU its helpers stand in the way of
    those of the thread that runs the steps."""
    if device.type == "cpu":
        from octavo_kernels.cpu.openmp import release_threads as run

        run()


def prepare_attention(
    metadata: AttentionMetadata, *, num_q_heads: int, num_kv_heads: int, window: int | None = None
) -> AttentionMetadata:
    """Cuts the step into pieces of work once, for all layers of a KV group.

    Optional: without it `paged_attention` does the same in each layer.
    """
    if metadata.seq_lens.is_cpu:
        from octavo_kernels.reference.decode_plan import with_plan

        return with_plan(metadata, num_kv_heads=num_kv_heads, window=window)
    from octavo_kernels.gpu.schedule import with_schedule

    return with_schedule(
        metadata, num_q_heads=num_q_heads, num_kv_heads=num_kv_heads, window=window
    )


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
    """q[T, Hq, D] against paged keys and values [num_blocks, Hkv, block_size, D] -> [T, Hq, D].

    A query at position p sees its row's keys in (p - window, p], all of [0, p] without a window.
    The logits q.k * scale go through softcap * tanh(x / softcap) when given. sinks[Hq] adds one
    logit per head to the softmax's denominator alone. Rows of seq_len 0 (padding) give numbers of
    no meaning, on a CPU perhaps no numbers. Pages must hold finite numbers everywhere: allocate
    them zeroed; `kv_write` writes no others. scales: of pages in e4m3.
    """
    if q.is_cpu:
        from octavo_kernels.cpu.run import paged_attention as attend

        rule = AttentionRule(
            scale=scale, window=window, softcap=softcap, sinks=sinks, scales=scales
        )
        return attend(q, k_cache, v_cache, metadata, rule)
    from octavo_kernels.gpu.paged_attention import paged_attention as run

    return run(
        q, k_cache, v_cache, metadata,
        scale=scale, window=window, softcap=softcap, sinks=sinks, scales=scales,
    )  # fmt: skip


def sample(
    logits: torch.Tensor,
    params: SamplingTensors,
    changes: Sequence[LogitChanges | None] | None = None,
) -> torch.Tensor:
    """logits[R, N] float32, bfloat16 or float16 -> ids[R] int64.

    Greedy rows take the largest logit, the lowest id on ties. The others add Gumbel noise, a hash
    of (seed, position, id), to logits / temperature and take the largest among the tokens kept.

    changes[R]: what rows change in their logits before, None for a row that changes nothing. The
    logits are then float32 and are changed in place. Raises ValueError for others.
    """
    if changes is not None and (logits.dtype != torch.float32 or len(changes) != len(logits)):
        raise ValueError(
            f"changes of {len(changes)} rows need as many rows of float32 logits, "
            f"got {len(logits)} of {logits.dtype}"
        )
    if logits.is_cpu:
        from octavo_kernels.cpu.run import sample as draw
        from octavo_kernels.reference.logit_changes import change_logits

        if changes is not None:
            change_logits(logits, changes)
        return draw(logits, params)
    from octavo_kernels.gpu.logit_changes import changes_table
    from octavo_kernels.gpu.sampling import sample as run

    return run(logits, params, None if changes is None else changes_table(changes, logits.device))


def leaves_a_token(changes: LogitChanges, num_tokens: int) -> bool:
    """Whether any of num_tokens ids may still be drawn; on a GPU this waits for the device."""
    from octavo_kernels.reference.logit_changes import change_logits

    probe = torch.zeros(1, num_tokens, device=changes.history.device)
    change_logits(probe, [changes])
    return not bool(torch.isneginf(probe).all())
