"""MXFP4, as gpt-oss's experts are published: 4-bit floats, 32 of them with one scale.

Stored for all experts of a layer in one, each a matrix of N rows and K inputs:
  NAME_blocks [E, N, K/32, 16] uint8, the first of two numbers (e2m1) in the low bits
  NAME_scales [E, N, K/32] uint8: 2 to the power of this less 127 (e8m0); 255 stands for no number
See "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.format import Stored, TensorInfos, check_multiple
from octavo_engine.quantization.without_kernel import WithoutKernel

BLOCK_INPUTS = 32
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Of the codes 0 to 15."""
SCALE_BIAS = 127
NO_NUMBER = 255


@dataclass(frozen=True)
class Mxfp4Experts(WithoutKernel):
    """A `WeightFormat` whose matrices come E at a time: shape is (E, num_rows, in_features)."""

    def describe(self) -> str:
        return f"4-bit floats, one scale for {BLOCK_INPUTS}, experts alone"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        return f"{module}_blocks" in infos

    def tensors(self, module: str, shape: tuple[int, ...], infos: TensorInfos) -> dict[str, Stored]:
        *rows, in_features = shape
        check_multiple(module, "inputs", in_features, BLOCK_INPUTS, "so many share a scale")
        blocks = (*rows, in_features // BLOCK_INPUTS)
        return {
            "blocks": Stored((*blocks, BLOCK_INPUTS // 2), ("U8",)),
            "scales": Stored(blocks, ("U8",)),
        }

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, ...]
    ) -> torch.Tensor:
        """[E, num_rows, in_features] bfloat16, which holds all such numbers exactly; one expert
        after the other, so that little more than the result is in memory."""
        blocks, scales = stored["blocks"], stored["scales"]
        if int(scales.max()) == NO_NUMBER:
            raise CheckpointError(f"a scale is {NO_NUMBER}, which stands for no number")
        out = torch.empty(shape, dtype=torch.bfloat16, device=blocks.device)
        numbers = torch.tensor(NUMBERS, device=blocks.device)
        for expert, packed, exponents in zip(out, blocks, scales, strict=True):
            codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
            powers = (exponents.int() - SCALE_BIAS).repeat_interleave(BLOCK_INPUTS, dim=-1)
            expert.copy_(torch.ldexp(numbers[codes.int()].flatten(-2), powers))
        return out
