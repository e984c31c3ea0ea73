"""Compiles the products with packed weights for sm_90 without a GPU; see `compile_sm90`."""

import json
from collections.abc import Callable

import torch
from tests.kernels.compile_sm90 import collect_launches

from octavo_kernels.gpu import packed_linear, scaled_linear
from octavo_kernels.gpu.hopper_packed import hopper_packed_linear
from octavo_kernels.gpu.quantize_tokens import quantize_tokens
from octavo_kernels.gpu.single_row_packed import single_row_packed_linear
from octavo_kernels.linear_ops import NormInput, NormOutput, RowNorm
from octavo_kernels.packed_weight import MAX_TILES, PackedKind, PackedWeight, num_steps

DTYPE = torch.bfloat16


def weight_of(
    kind: PackedKind, shape: tuple[int, int], *, has_groups: bool, has_zeros: bool = False
) -> PackedWeight:
    """Nothing is computed: memory is not filled."""
    num_rows, width = shape
    steps = num_steps(width, 4 if kind == "int4" else 8)
    words = (steps, num_rows, 64) if kind == "int4" else (num_rows, steps * 64)
    scale_rows = 128 if kind == "fp8" and has_groups else 1
    scales = (-(-width // 128) if has_groups else 1, -(-num_rows // scale_rows))
    return PackedWeight(
        kind=kind,
        words=torch.empty(words, dtype=torch.int16),
        scales=torch.empty(scales, dtype=torch.float16 if kind == "int4" else torch.float32),
        zeros=torch.empty(scales, dtype=torch.float16) if has_zeros else None,
        num_rows=num_rows,
        width=width,
        group_size=128 if has_groups else width,
        scale_rows=scale_rows,
        arrivals=torch.empty(MAX_TILES, dtype=torch.int32),
    )


def fused(
    num_tokens: int, weight: PackedWeight, *, gated: bool = False, adds: bool = False
) -> None:
    squares = torch.empty(64, 64)
    residual = torch.empty(num_tokens, weight.num_rows, dtype=DTYPE)
    hopper_packed_linear(
        torch.empty(num_tokens, weight.width, dtype=DTYPE),
        weight,
        None,
        gated=gated,
        norm=NormInput(squares, 64, 1e-5) if gated else None,
        add=NormOutput(residual, residual[0], 0.0, residual, squares) if adds else None,
    )


def scaled(num_tokens: int, weight: PackedWeight) -> None:
    dtype = torch.float8_e4m3fn if weight.kind == "fp8" else torch.int8
    values = torch.empty(num_tokens, weight.width, dtype=dtype)
    scales = torch.empty(len(weight.scales), num_tokens)
    scaled_linear.scaled_linear(values, scales, weight, None, DTYPE, use_tma=True)


def single(weight: PackedWeight, *, gated: bool = False) -> None:
    """As a decoder has it: after a norm, or a long one before a residual."""
    x = torch.empty(1, weight.width, dtype=DTYPE)
    is_long = weight.width > 8192
    single_row_packed_linear(
        x, weight, None,
        gated=gated,
        norm=None if is_long else RowNorm(x[0], 0.0, 1e-5),
        residual=torch.empty(1, weight.num_rows, dtype=DTYPE) if is_long else None,
    )  # fmt: skip


def cases() -> dict[str, Callable[[], object]]:
    square, gate, long = (4096, 4096), (28672, 4096), (4096, 14336)
    int4 = weight_of("int4", square, has_groups=True)
    asymmetric = weight_of("int4", square, has_groups=True, has_zeros=True)
    int4_gate = weight_of("int4", gate, has_groups=True)
    fp8, blocks = (weight_of("fp8", long, has_groups=groups) for groups in (False, True))
    x = torch.empty(4, 14336, dtype=DTYPE)
    return {
        "int4 1": lambda: fused(1, int4, adds=True),
        "int4 zeros 16": lambda: fused(16, asymmetric),
        "int4 40": lambda: fused(40, int4, adds=True),
        "int4 gate 64": lambda: fused(64, int4_gate, gated=True),
        "fp8 1": lambda: fused(1, fp8, adds=True),
        "fp8 short 1": lambda: fused(1, weight_of("fp8", square, has_groups=False)),
        "fp8 blocks 32": lambda: fused(32, blocks),
        "single int4": lambda: single(int4),
        "single int4 zeros": lambda: single(asymmetric),
        "single int4 gate": lambda: single(int4_gate, gated=True),
        "single int4 long": lambda: single(weight_of("int4", long, has_groups=True)),
        "single fp8": lambda: single(fp8),
        "single fp8 blocks": lambda: single(blocks),
        "plain int4 4": lambda: packed_linear.packed_linear(x[:, :4096], int4, None),
        "dequantize int4": lambda: packed_linear.dequantize(asymmetric, DTYPE),
        "scaled fp8 100": lambda: scaled(100, fp8),
        "quantize fp8": lambda: quantize_tokens(x, torch.float8_e4m3fn, None, None),
    }


def main() -> None:
    reports: list[dict[str, object]] = []
    collect_launches(reports)
    for name, launch in cases().items():
        launch()
        for line in reports:
            print(json.dumps({"case": name} | line))
        reports.clear()


if __name__ == "__main__":
    main()
