"""Rounding of a product's inputs, as FP8 and W8A8 schemes ask. Pure; knows no checkpoint.

Computed in float32 and returned in the input's dtype: what a kernel on 8-bit inputs would multiply.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn import functional

FP8_MAX = 448.0
INT8_LOWEST, INT8_HIGHEST = -128.0, 127.0
SMALLEST_SCALE = torch.finfo(torch.float32).eps


@dataclass(frozen=True, kw_only=True)
class InputFormat:
    kind: Literal["fp8", "int8"]
    is_dynamic: bool
    """Whether scales are taken from each token's own inputs; otherwise the checkpoint holds one."""
    group_size: int | None = None
    """Dynamic: inputs of a token that share a scale; None: all of them."""
    is_symmetric: bool = True

    def describe(self) -> str:
        if not self.is_dynamic:
            return f"{self.kind} inputs, static"
        share = "token" if self.group_size is None else f"{self.group_size} inputs"
        kind = "" if self.is_symmetric else ", asymmetric"
        return f"{self.kind} inputs, dynamic for each {share}{kind}"


def round_dynamic(x: torch.Tensor, fmt: InputFormat) -> torch.Tensor:
    """x[..., K] with every token (or group of its inputs) rounded by a scale of its own."""
    if fmt.group_size is not None:
        return _round_groups(x, fmt)
    values = x.float()
    lowest, highest = values.amin(dim=-1, keepdim=True), values.amax(dim=-1, keepdim=True)
    return round_to_range(values, lowest, highest, fmt).to(x.dtype)


def round_to_range(
    values: torch.Tensor, lowest: torch.Tensor, highest: torch.Tensor, fmt: InputFormat
) -> torch.Tensor:
    """values, float32, rounded by scales that just hold what lies between lowest and highest; both
    broadcast to the values."""
    if not fmt.is_symmetric:
        return _round_asymmetric(values, lowest.clamp_max(0.0), highest.clamp_min(0.0))
    # compressed-tensors divides by half of the 255 steps: the largest value of +127.5 saturates.
    top = FP8_MAX if fmt.kind == "fp8" else (INT8_HIGHEST - INT8_LOWEST) / 2
    scale = (torch.maximum(-lowest, highest) / top).clamp_min(SMALLEST_SCALE)
    return _round(values, scale, fmt.kind)


def round_static(x: torch.Tensor, fmt: InputFormat, scale: torch.Tensor) -> torch.Tensor:
    """x[..., K] rounded by one scale (a float32 scalar); larger values saturate."""
    return _round(x.float(), scale, fmt.kind).to(x.dtype)


def _round(values: torch.Tensor, scale: torch.Tensor, kind: Literal["fp8", "int8"]) -> torch.Tensor:
    scaled = values / scale
    if kind == "fp8":
        return scaled.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float().mul_(scale)
    return scaled.round_().clamp_(INT8_LOWEST, INT8_HIGHEST).mul_(scale)


def _round_groups(x: torch.Tensor, fmt: InputFormat) -> torch.Tensor:
    """The last group may be short: zeros beside it change no maximum."""
    assert fmt.group_size is not None
    in_features = x.shape[-1]
    padded = functional.pad(x, (0, -in_features % fmt.group_size))
    grouped = padded.reshape(*x.shape[:-1], -1, fmt.group_size)
    ungrouped = InputFormat(kind=fmt.kind, is_dynamic=True, is_symmetric=fmt.is_symmetric)
    return round_dynamic(grouped, ungrouped).flatten(-2)[..., :in_features]


def _round_asymmetric(
    values: torch.Tensor, lowest: torch.Tensor, highest: torch.Tensor
) -> torch.Tensor:
    """int8 over the token's own range, which always holds zero."""
    scale = ((highest - lowest) / (INT8_HIGHEST - INT8_LOWEST)).clamp_min(SMALLEST_SCALE)
    zero = (INT8_LOWEST - lowest / scale).clamp(INT8_LOWEST, INT8_HIGHEST).round()
    quantized = (values / scale + zero).round().clamp(INT8_LOWEST, INT8_HIGHEST)
    return (quantized - zero) * scale
