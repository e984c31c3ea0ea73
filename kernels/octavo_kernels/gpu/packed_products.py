"""Which kernel multiplies by a packed weight."""

import torch
from torch.nn import functional

from octavo_kernels.gpu import hopper_packed
from octavo_kernels.gpu import packed_linear as plain
from octavo_kernels.packed_weight import PackedWeight

DEQUANTIZED_FROM = 1024
"""Tokens from which making the weight 16-bit first costs less than unpacking it in the product."""


def packed_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """As `quant_ops.packed_linear`."""
    if x.shape[0] >= DEQUANTIZED_FROM:
        return functional.linear(x, plain.dequantize(weight, x.dtype), bias)
    x = x.contiguous()
    if x.is_cuda and hopper_packed.can_run(weight, x.dtype):
        return hopper_packed.hopper_packed_linear(x, weight, bias)
    return plain.packed_linear(x, weight, bias)
