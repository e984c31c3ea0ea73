"""Rotary position embedding over the first dimensions of each head, in place."""

import torch


def apply_rope(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    *,
    interleaved: bool = False,
) -> None:
    cos_rows = cos[positions].unsqueeze(1)
    sin_rows = sin[positions].unsqueeze(1)
    joined = _joined(q, k)
    for x in (q, k) if joined is None else (joined,):
        _rotate(x, cos_rows, sin_rows, interleaved)


def _joined(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """q and k as one tensor [T, Hq + Hkv, D] where they lie side by side in a packed projection."""
    if q.stride() != k.stride() or q.untyped_storage().data_ptr() != k.untyped_storage().data_ptr():
        return None
    if k.storage_offset() - q.storage_offset() != q.shape[1] * q.stride(1):
        return None
    return q.as_strided((q.shape[0], q.shape[1] + k.shape[1], q.shape[2]), q.stride())


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    """x[T, H, D] in place; cos and sin [T, 1, R/2]."""
    half = cos.shape[-1]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    a, b = first.float(), second.float()
    rotated_first = torch.addcmul(a * cos, b, sin, value=-1)
    rotated_second = torch.addcmul(b * cos, a, sin)
    first.copy_(rotated_first)
    second.copy_(rotated_second)
