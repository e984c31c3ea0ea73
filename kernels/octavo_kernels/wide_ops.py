"""Products of many tokens with a large matrix, and what a decoder fuses around them.

The same two forms of a decoder's running sum as in `linear_ops`, for steps with prompts: norms are
one factor a token at the end of a product, and the residual is added where its sum is made.
"""

import torch
from torch.nn import functional

from octavo_kernels.linear_ops import ACTIVATIONS, NormInput, NormOutput

WIDE_TILE = 256
"""Rows of a weight in a tile; sums of squares are left for each such tile."""


def can_be_wide(weight: torch.Tensor, *, gated: bool) -> bool:
    """Whether the functions below take this weight [N, K], 16-bit, of whole tiles; gated: [2N, K],
    of which a tile has half its rows from either half."""
    num_rows, width = weight.shape
    return (
        weight.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
        and num_rows % WIDE_TILE == 0
        and (not gated or num_rows % (2 * WIDE_TILE) == 0)
        and width % 64 == 0
    )


def wide_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
) -> torch.Tensor:
    """x[T, K] @ weight[N, K].T -> [T, N] for any T.

    norm: see `NormInput`. add: the result is the new residual, see `NormOutput`; sums of squares
    [N / WIDE_TILE, >= T].
    """
    _check(x, weight, gated=False)
    if not len(x) or (norm is None and add is None):
        return functional.linear(x, weight)
    if x.is_cpu:
        from octavo_kernels.reference.wide_linear import wide_linear as reference

        return reference(x, weight, norm=norm, add=add)
    from octavo_kernels.gpu import hopper_wide, wide_rows

    if hopper_wide.can_run(x, weight):
        return hopper_wide.hopper_wide_linear(x, weight, norm=norm, add=add)
    return wide_rows.wide_linear(x, weight, norm=norm, add=add)


def wide_gated_linear(
    x: torch.Tensor, weight: torch.Tensor, *, activation: str, norm: NormInput
) -> torch.Tensor:
    """As `linear_ops.gated_linear`, behind a norm; see `NormInput`. For any T."""
    _check(x, weight, gated=True)
    if len(x) and x.is_cuda:
        from octavo_kernels.gpu import hopper_gated

        if hopper_gated.can_run(x, weight):
            is_gelu = activation == "gelu_tanh"
            return hopper_gated.hopper_gated_linear(x, weight, gelu=is_gelu, norm=norm)
    return ACTIVATIONS[activation](wide_linear(x, weight, norm=norm))


def _check(x: torch.Tensor, weight: torch.Tensor, *, gated: bool) -> None:
    if not can_be_wide(weight, gated=gated) or x.dim() != 2 or x.shape[1] != weight.shape[1]:
        raise ValueError(f"a wide product cannot multiply {tuple(x.shape)} by {weight.shape}")
