"""What decode attention does with a row's new token when it also rotates and stores it.

The queries are rotated as they are loaded, by every piece of the row. The new key and value go to
their page by the row's last piece, which attends to them from registers: the page may not show
them yet. All other pieces see the keys before.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.attention_parts import MASKED, scale_logits


@dataclass(frozen=True)
class Rotation:
    """A step's new keys and values, and how queries and keys are rotated.

    k, v[R, Hkv, D] may be strided views whose last stride is 1; the rest as `ops.rope_kv_write`.
    """

    k: torch.Tensor
    v: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor
    """[R]: each row's row in the tables."""
    slots: torch.Tensor
    interleaved: bool
    qk_norm: tuple[torch.Tensor, torch.Tensor] | None
    eps: float


@triton.jit
def load_rotated(
    rows,
    row_mask,
    norm_weight,
    eps,
    table_row,
    cos_table,
    sin_table,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
):
    """[rows, BLOCK_D] float32, rounded to the source's type. rows: pointers [rows, 1] to heads."""
    narrow: tl.constexpr = rows.dtype.element_ty
    dim = tl.arange(0, BLOCK_D)
    is_rotated = dim < 2 * HALF
    if INTERLEAVED:
        other = tl.where(is_rotated, dim ^ 1, dim)
        pair = dim // 2
        is_first = dim % 2 == 0
    else:
        is_first = dim < HALF
        other = tl.where(is_rotated, tl.where(is_first, dim + HALF, dim - HALF), dim)
        pair = tl.where(is_first, dim, dim - HALF)
    inside = row_mask[:, None] & (dim < HEAD_DIM)[None, :]
    x = tl.load(rows + dim[None, :], mask=inside, other=0.0).to(tl.float32)
    y = tl.load(rows + other[None, :], mask=inside, other=0.0).to(tl.float32)
    at = table_row * HALF + pair
    cos = tl.load(cos_table + at, mask=is_rotated, other=1.0)
    sin = tl.load(sin_table + at, mask=is_rotated, other=0.0)
    if HAS_NORM:
        inverse_rms = tl.rsqrt(tl.sum(x * x, axis=1) / HEAD_DIM + eps)[:, None]
        x_scale = tl.load(norm_weight + dim, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        y_scale = tl.load(norm_weight + other, mask=dim < HEAD_DIM, other=0.0).to(tl.float32)
        # Rounded as rms_norm's output would be, so that fused and unfused agree.
        x = (x * inverse_rms * x_scale[None, :]).to(narrow).to(tl.float32)
        y = (y * inverse_rms * y_scale[None, :]).to(narrow).to(tl.float32)
    signed = tl.where(is_first, -sin, sin)
    return (x * cos[None, :] + y * signed[None, :]).to(narrow).to(tl.float32)


@triton.jit
def attend_new(
    queries,
    k_row,
    v_row,
    k_target,
    v_target,
    is_mine,
    norm_weight,
    eps,
    table_row,
    cos_table,
    sin_table,
    scale,
    softcap,
    HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr,
    HALF: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
):
    """Stores the new key and value and starts a softmax with them; is_mine: this piece does so.

    k_row, v_row, k_target, v_target: pointers to the head's first dimension. Returns the values
    [BLOCK_D] that weigh 1, and the running maximum and total [rows]; without is_mine zeros, as an
    empty softmax.
    """
    one = tl.arange(0, 1)
    dim = tl.arange(0, BLOCK_D)
    key = load_rotated(
        k_row + one[:, None], one < tl.where(is_mine, 1, 0), norm_weight, eps, table_row, cos_table,
        sin_table, HEAD_DIM, BLOCK_D, HALF, INTERLEAVED, HAS_NORM,
    )  # fmt: skip
    key = tl.sum(key, axis=0)
    inside = dim < tl.where(is_mine, HEAD_DIM, 0)
    value = tl.load(v_row + dim, mask=inside, other=0.0)
    stored_key = key.to(k_target.dtype.element_ty)
    stored_value = value.to(v_target.dtype.element_ty)
    tl.store(k_target + dim, stored_key, mask=inside)
    tl.store(v_target + dim, stored_value, mask=inside)
    # What the page gives back is what counts: it may be of a narrower type.
    seen_key = stored_key.to(k_row.dtype.element_ty).to(tl.float32)
    seen_value = stored_value.to(v_row.dtype.element_ty).to(tl.float32)
    products = tl.sum(queries.to(tl.float32) * seen_key[None, :], axis=1)
    logits = scale_logits(products, scale, softcap, HAS_SOFTCAP)
    maximum = tl.where(is_mine, logits, MASKED)
    total = tl.where(is_mine, 1.0, 0.0) + tl.zeros_like(maximum)
    return seen_value, maximum, total
