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
    for x in (q, k):
        _rotate(x, cos_rows, sin_rows, interleaved)


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool) -> None:
    """x[T, H, D] in place; cos and sin [T, 1, R/2]."""
    half = cos.shape[-1]
    if interleaved:
        first, second = x[..., 0 : 2 * half : 2], x[..., 1 : 2 * half : 2]
    else:
        first, second = x[..., :half], x[..., half : 2 * half]
    a, b = first.float(), second.float()
    rotated_first, rotated_second = a * cos - b * sin, b * cos + a * sin
    first.copy_(rotated_first)
    second.copy_(rotated_second)
