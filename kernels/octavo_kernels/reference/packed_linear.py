"""Products with weights of 4 and 8 bits, step by step."""

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

from octavo_kernels.linear_ops import ONE_TOKEN_PART, NormInput
from octavo_kernels.packed_weight import (
    INT4_ZERO,
    PackedWeight,
    interleave,
    spread_scale_rows,
    unpack_words,
)
from octavo_kernels.reference.skinny_linear import single_row_linear, skinny_linear

if TYPE_CHECKING:
    from octavo_kernels.linear_ops import NormOutput, RowNorm

FP8_MAX = 448.0
INT8_TOP = 127.5
SMALLEST_SCALE = torch.finfo(torch.float32).eps


def dequantize(weight: PackedWeight) -> torch.Tensor:
    """[N, K] float32."""
    values = unpack_words(weight)
    groups = torch.arange(weight.width, device=values.device) // weight.group_size
    by_row = spread_scale_rows(weight)
    if by_row.zeros is not None:
        values -= by_row.zeros.float().T[:, groups]
    elif weight.kind == "int4":
        values -= INT4_ZERO
    return values * by_row.scales.float().T[:, groups]


def packed_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    product = x.float() @ dequantize(weight).to(x.dtype).float().T
    return (product if bias is None else product + bias.float()).to(x.dtype)


def fused_packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: "NormInput | None",
    add: "NormOutput | None",
) -> torch.Tensor:
    plain = dequantize(weight).to(x.dtype)
    return skinny_linear(x, plain, bias, gated=gated, norm=norm, add=add)


def single_row_packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: "RowNorm | NormInput | None",
    residual: torch.Tensor | None,
    add: "NormOutput | None" = None,
) -> torch.Tensor:
    plain = dequantize(weight).to(x.dtype)
    if isinstance(norm, NormInput):
        assert residual is None
        assert add is None
        return skinny_linear(x, plain, bias, gated=gated, norm=norm, add=None)
    if add is None:
        return single_row_linear(x, plain, bias, gated=gated, norm=norm, residual=residual)
    total = single_row_linear(x, plain, bias, gated=gated, norm=norm, residual=add.residual)
    add.scaled.copy_(total.float() * (add.gamma.float() + add.gamma_offset))
    parts = total.float().square().view(-1, ONE_TOKEN_PART).sum(dim=-1)
    add.squares[: len(parts), 0] = parts
    return total


def quantize_tokens(
    x: torch.Tensor, dtype: torch.dtype, group_size: int | None, scale: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    num_tokens, width = x.shape
    padded = functional.pad(x.float(), (0, -width % 128))
    groups = padded.view(num_tokens, -1, group_size or padded.shape[1])
    top = FP8_MAX if dtype == torch.float8_e4m3fn else INT8_TOP
    if scale is None:
        scales = (groups.abs().amax(dim=-1) / top).clamp_min(SMALLEST_SCALE)
    else:
        scales = scale.float().expand(groups.shape[:2])
    scaled = groups / scales[:, :, None]
    if dtype == torch.float8_e4m3fn:
        values = scaled.clamp(-FP8_MAX, FP8_MAX).to(dtype)
    else:
        values = scaled.round().clamp(-128, 127).to(dtype)
    return interleave(values.flatten(1)), scales.T.contiguous()


def scaled_linear(
    values: torch.Tensor,
    scales: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    wide = values.float().view(len(values), -1, 64, 2).transpose(-1, -2).flatten(1)
    group_size = wide.shape[1] // len(scales)
    x = wide * scales.T.repeat_interleave(group_size, dim=1)
    product = x[:, : weight.width] @ dequantize(weight).T
    return (product if bias is None else product + bias.float()).to(dtype)
