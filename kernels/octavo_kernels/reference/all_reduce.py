"""Sum over ranks with the residual and norm behind it, all ranks' parts in one place."""

import torch

from octavo_kernels.reference.rms_norm import rms_norm


def all_reduce_add_rms_norm(
    parts: list[torch.Tensor],
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    weight_offset: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """parts: x[T, H] of each rank. Summed in float32, in the order of ranks, and rounded once with
    the residual -> (norm of the total, total)."""
    total = sum_of_parts(parts) + residual.float()
    rounded = total.to(residual.dtype)
    normed = rms_norm(rounded, weight, eps, weight_offset=weight_offset)
    assert isinstance(normed, torch.Tensor)
    return normed, rounded


def sum_of_parts(parts: list[torch.Tensor]) -> torch.Tensor:
    """In float32."""
    total = parts[0].float()
    for part in parts[1:]:
        total = total + part.float()
    return total
