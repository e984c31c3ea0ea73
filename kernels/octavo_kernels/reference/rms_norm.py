"""RMS normalisation over the last dimension, with an optional residual added first."""

import torch


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    residual: torch.Tensor | None = None,
    weight_offset: float = 0.0,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    if residual is not None:
        x = x + residual
    wide = x.float()
    inverse_rms = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    scale = weight.float() + weight_offset if weight_offset else weight.float()
    y = (wide * inverse_rms * scale).to(x.dtype)
    return y if residual is None else (y, x)
