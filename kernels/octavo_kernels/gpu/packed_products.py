"""Which kernel multiplies by a packed weight."""

import torch
from torch.nn import functional

from octavo_kernels.gpu import hopper_packed
from octavo_kernels.gpu import packed_linear as plain
from octavo_kernels.packed_weight import PackedWeight

MAX_HOPPER_TOKENS = 1023
MAX_PLAIN_TOKENS = 128
"""With more tokens, making the weight 16-bit first costs less than unpacking it for each tile of
tokens anew: 163 us for the four products of a layer of Llama-3.1-8B on an H200."""


def packed_linear(x: torch.Tensor, weight: PackedWeight, bias: torch.Tensor | None) -> torch.Tensor:
    """As `quant_ops.packed_linear`."""
    runs_on_hopper = x.is_cuda and hopper_packed.can_run(weight, x.dtype)
    if len(x) > (MAX_HOPPER_TOKENS if runs_on_hopper else MAX_PLAIN_TOKENS):
        return functional.linear(x, plain.dequantize(weight, x.dtype), bias)
    if runs_on_hopper:
        return hopper_packed.hopper_packed_linear(x.contiguous(), weight, bias)
    return plain.packed_linear(x.contiguous(), weight, bias)
