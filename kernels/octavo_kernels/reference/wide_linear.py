"""A product of many tokens with norm and residual around it, step by step."""

from typing import TYPE_CHECKING

import torch

from octavo_kernels.reference.skinny_linear import skinny_linear

if TYPE_CHECKING:
    from octavo_kernels.linear_ops import NormInput, NormOutput

TILE = 256


def wide_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: "NormInput | None",
    add: "NormOutput | None",
) -> torch.Tensor:
    return skinny_linear(x, weight, None, gated=False, norm=norm, add=add, tile=TILE)
