"""MXFP4, as gpt-oss's experts are published: all of a layer in one, each N rows and K inputs.

NAME_blocks [E, N, K/32, 16] uint8, two numbers to a byte (see `fp4`)
NAME_scales [E, N, K/32] uint8: 2 to the power of this less 127 (e8m0); 255 stands for no number
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from octavo_engine.quantization.format import Stored, TensorInfos, check_multiple
from octavo_engine.quantization.fp4 import (
    GROUP_SIZES,
    refuse_no_number,
    scale_by_powers,
    unpack,
)
from octavo_engine.quantization.without_kernel import WithoutKernel

BLOCK_INPUTS = GROUP_SIZES["mxfp4"]


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
        refuse_no_number(scales)
        out = torch.empty(shape, dtype=torch.bfloat16, device=blocks.device)
        for expert, packed, exponents in zip(out, blocks, scales, strict=True):
            expert.copy_(scale_by_powers(unpack(packed).flatten(-2), exponents))
        return out
