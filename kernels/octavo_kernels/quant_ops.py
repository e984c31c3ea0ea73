"""Products with weights of 4 and 8 bits. CPU tensors take the reference, others the kernels.

packed_linear    16-bit inputs; the weight is unpacked on its way to the matrix unit
quantize_tokens  inputs to 8 bits
scaled_linear    8-bit inputs with an 8-bit weight
"""

import torch

from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    NormInput,
    NormOutput,
    RowNorm,
)
from octavo_kernels.packed_weight import MAX_TILES, PackedKind, PackedWeight, join_rows, pack_words

__all__ = [
    "MAX_TILES",
    "PackedWeight",
    "can_be_fused",
    "can_be_single_row",
    "can_hold",
    "fused_packed_linear",
    "join_rows",
    "pack_words",
    "packed_linear",
    "quantize_tokens",
    "scaled_linear",
    "single_row_packed_linear",
]

STEP_INPUTS = 128
"""Inputs that 8-bit tokens are padded to a multiple of, and that share a scale in groups."""


def packed_linear(
    x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x[T, K] @ weight[N, K].T + bias -> [T, N] in x's dtype; weights are rounded to that too."""
    if x.shape[1] != weight.width:
        raise ValueError(f"packed_linear got {x.shape[1]} inputs, the weight has {weight.width}")
    if x.is_cpu:
        from octavo_kernels.reference.packed_linear import packed_linear as run
    else:
        from octavo_kernels.gpu.packed_products import packed_linear as run
    return run(x, weight, bias)


def can_hold(kind: PackedKind, device: torch.device) -> bool:
    """Whether the kernels multiply by such weights there: fp8 numbers came with sm_89."""
    if device.type != "cuda" or kind != "fp8":
        return True
    from octavo_kernels.gpu.launch import capability

    return capability(device) >= (8, 9)


def can_be_fused(weight: PackedWeight, dtype: torch.dtype, *, gated: bool) -> bool:
    """Whether `fused_packed_linear` takes this weight: on Hopper, in whole tiles."""
    if weight.words.is_cpu:
        return False
    from octavo_kernels.gpu.hopper_packed import can_run

    num_rows = weight.num_rows // 2 if gated else weight.num_rows
    return can_run(weight, dtype) and num_rows % (64 if gated else 128) == 0


def fused_packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
) -> torch.Tensor:
    """As `linear_ops.skinny_linear`, for a weight that `can_be_fused`; T <= MAX_SKINNY_TOKENS."""
    if not 1 <= x.shape[0] <= MAX_SKINNY_TOKENS:
        raise ValueError(
            f"fused_packed_linear takes 1 to {MAX_SKINNY_TOKENS} tokens, got {x.shape[0]}"
        )
    if x.is_cpu:
        from octavo_kernels.reference.packed_linear import fused_packed_linear as reference

        return reference(x, weight, bias, gated=gated, norm=norm, add=add)
    from octavo_kernels.gpu.hopper_packed import hopper_packed_linear

    return hopper_packed_linear(x, weight, bias, gated=gated, norm=norm, add=add)


def can_be_single_row(weight: PackedWeight) -> bool:
    """Whether `single_row_packed_linear` takes this weight: int4 or fp8 with one scale a row or
    one for a multiple of 128 inputs."""
    if not weight.has_row_scales and weight.group_size % STEP_INPUTS != 0:
        return False
    if weight.kind == "int4":
        return weight.scale_rows == 1
    return weight.kind == "fp8" and weight.zeros is None


def single_row_packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    norm: RowNorm | NormInput | None = None,
    residual: torch.Tensor | None = None,
    add: NormOutput | None = None,
) -> torch.Tensor:
    """As `linear_ops.single_row_linear`, for a weight that `can_be_single_row`, of any width.

    add, instead of a residual: see `NormOutput`; sums of squares are left for each
    `linear_ops.ONE_TOKEN_PART` outputs.
    """
    if x.shape != (1, weight.width) or not can_be_single_row(weight):
        raise ValueError(
            f"single_row_packed_linear cannot multiply {tuple(x.shape)} by {weight.kind} "
            f"[{weight.num_rows}, {weight.width}] in groups of {weight.group_size}"
        )
    if x.is_cpu:
        from octavo_kernels.reference.packed_linear import single_row_packed_linear as run
    else:
        from octavo_kernels.gpu.single_row_packed import single_row_packed_linear as run
    return run(x, weight, bias, gated=gated, norm=norm, residual=residual, add=add)


def quantize_tokens(
    x: torch.Tensor,
    dtype: torch.dtype,
    *,
    group_size: int | None = None,
    scale: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """x[T, K] -> (values[T, K padded to 128s], scales[G, T] float32) for `scaled_linear`.

    dtype: torch.float8_e4m3fn or torch.int8. group_size: 128, or None for one scale a token.
    scale: one number for all tokens; larger values saturate. Without it scales are taken from the
    inputs: the largest of a group becomes 448, or 127.5 steps of int8.
    """
    if group_size not in (None, STEP_INPUTS):
        raise ValueError(f"groups of {group_size} inputs are not supported, only {STEP_INPUTS}")
    if x.is_cpu:
        from octavo_kernels.reference.packed_linear import quantize_tokens as run
    else:
        from octavo_kernels.gpu.quantize_tokens import quantize_tokens as run
    return run(x, dtype, group_size, scale)


def scaled_linear(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Tokens as `quantize_tokens` makes them, by weight[N, K] of 8 bits without zeros -> [T, N].

    Tokens and weight must agree: one scale a token with one a row, or groups of 128 with the same.
    """
    if weight.zeros is not None or weight.kind == "int4":
        raise ValueError(f"scaled_linear cannot multiply by {weight.kind} with zero points")
    if len(scales) != len(weight.scales):
        raise ValueError(
            f"tokens have {len(scales)} groups of inputs, the weight has {len(weight.scales)}"
        )
    if values.is_cpu:
        from octavo_kernels.reference.packed_linear import scaled_linear as run
    else:
        from octavo_kernels.gpu.scaled_linear import scaled_linear as run
    return run(values, scales, weight, bias, dtype)
