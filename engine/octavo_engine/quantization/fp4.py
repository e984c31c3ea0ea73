"""4-bit floats (e2m1), two to a byte, a few with one scale: MXFP4 and NVFP4.

Of weights. Inputs that a checkpoint asks to have rounded so stay in 16 bits: no GPU that the
kernels are for multiplies by 4-bit floats, so rounding would cost time and exactness for nothing.

Stored for a matrix of N rows and K inputs:
  weight_packed [N, K/2] uint8, the first of two numbers in the low bits
  mxfp4: weight_scale [N, K/32] uint8, 2 to the power of this less 127 (e8m0)
  nvfp4: weight_scale [N, K/16] e4m3, divided by weight_global_scale [1] float32; with rounded
    inputs also input_global_scale [1] float32
See "OCP Microscaling Formats (MX) Specification", version 1.0.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.quantization.format import Stored, TensorInfos, check_multiple
from octavo_engine.quantization.without_kernel import WithoutKernel

Fp4Kind = Literal["mxfp4", "nvfp4"]
GROUP_SIZES: Mapping[Fp4Kind, int] = {"mxfp4": 32, "nvfp4": 16}
"""Inputs with one scale."""
NUMBERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Of the codes 0 to 15."""
SCALE_BIAS = 127
NO_NUMBER = 255


def unpack(packed: torch.Tensor) -> torch.Tensor:
    """packed [..., K/2] uint8 -> the numbers [..., K] float32."""
    codes = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    return torch.tensor(NUMBERS, device=packed.device)[codes.int()]


def scale_by_powers(numbers: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """numbers [..., K] times 2 to the power of scales [..., K/32] uint8 less 127."""
    exponents = scales.int() - SCALE_BIAS
    return torch.ldexp(numbers, exponents.repeat_interleave(GROUP_SIZES["mxfp4"], dim=-1))


def refuse_no_number(scales: torch.Tensor) -> None:
    if int(scales.max()) == NO_NUMBER:
        raise CheckpointError(f"a scale is {NO_NUMBER}, which stands for no number")


@dataclass(frozen=True)
class Fp4Format(WithoutKernel):
    kind: Fp4Kind
    has_fp4_inputs: bool = False
    """Whether the checkpoint asks for inputs in 4 bits, too."""

    def describe(self) -> str:
        inputs = (
            "inputs in 16 bits where 4 are asked for" if self.has_fp4_inputs else "weights only"
        )
        return f"{self.kind}, one scale for {GROUP_SIZES[self.kind]}, {inputs}"

    def is_used_by(self, module: str, infos: TensorInfos) -> bool:
        return f"{module}.weight_packed" in infos

    def tensors(self, module: str, shape: tuple[int, int], infos: TensorInfos) -> dict[str, Stored]:
        num_rows, in_features = shape
        size = GROUP_SIZES[self.kind]
        check_multiple(module, "inputs", in_features, size, "so many share a scale")
        scale_dtypes = ("U8",) if self.kind == "mxfp4" else ("F8_E4M3",)
        found = {
            "weight_packed": Stored((num_rows, in_features // 2), ("U8",)),
            "weight_scale": Stored((num_rows, in_features // size), scale_dtypes),
        }
        if self.kind == "nvfp4":
            found["weight_global_scale"] = Stored((1,), ("F32",))
            if self.has_fp4_inputs:
                found["input_global_scale"] = Stored((1,), ("F32",))
        return found

    def dequantize(
        self, stored: Mapping[str, torch.Tensor], shape: tuple[int, int]
    ) -> torch.Tensor:
        numbers, scales = unpack(stored["weight_packed"]), stored["weight_scale"]
        if self.kind == "mxfp4":
            refuse_no_number(scales)
            return scale_by_powers(numbers, scales)
        factors = scales.float() / stored["weight_global_scale"]
        if not bool(factors.isfinite().all()):
            raise CheckpointError(
                "a scale divided by weight_global_scale "
                f"{stored['weight_global_scale'].item():g} is no finite number"
            )
        return numbers * factors.repeat_interleave(GROUP_SIZES["nvfp4"], dim=-1)
