"""Products of 2 to 16 tokens whose weights go through registers: when they are taken, their call.

They do what `linear_ops.skinny_linear` does, on Hopper alone, and leave finer sums of squares.
"""

import torch

from octavo_kernels.linear_ops import NormInput, NormOutput

FEW_TILE = 16
"""Rows of a weight in a program; sums of squares are left for each such tile."""
MAX_FEW_TOKENS = 16
MIN_FEW_WIDTH = 2048
"""Shorter rows are not enough for all that a program asks for at once."""
FEW_TOKENS = range(0)
"""Numbers of tokens that go this way: none until an H200 has shown where it is faster."""


def takes_few(
    num_tokens: int,
    num_weight_rows: int,
    width: int,
    *,
    is_hopper: bool,
    taken: range = FEW_TOKENS,
) -> bool:
    """Whether a product goes this way. num_weight_rows: with a gate of both halves, in whole tiles
    as `can_be_skinny` has them."""
    return (
        is_hopper
        and num_tokens in taken
        and num_weight_rows % (2 * FEW_TILE) == 0
        and width % 512 == 0
        and width >= MIN_FEW_WIDTH
    )


def is_hopper(device: torch.device) -> bool:
    if device.type != "cuda":
        return False
    from octavo_kernels.gpu.launch import capability

    return capability(device)[0] == 9


def few_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
    overlaps: bool = False,
) -> torch.Tensor:
    """As `linear_ops.skinny_linear` of up to MAX_FEW_TOKENS tokens, for what `takes_few` allows.

    add: its squares [N / FEW_TILE, MAX_SKINNY_TOKENS]. overlaps: the weight is read while the
    kernel in front still runs.
    """
    if not 1 <= len(x) <= MAX_FEW_TOKENS or x.shape[1] != weight.shape[1]:
        raise ValueError(f"few_linear cannot multiply {tuple(x.shape)} by {tuple(weight.shape)}")
    if x.is_cpu:
        from octavo_kernels.reference.skinny_linear import skinny_linear as reference

        return reference(x, weight, bias, gated=gated, norm=norm, add=add, tile=FEW_TILE)
    from octavo_kernels.gpu.few_tokens import few_linear as run

    return run(x, weight, bias, gated=gated, norm=norm, add=add, overlaps=overlaps)
