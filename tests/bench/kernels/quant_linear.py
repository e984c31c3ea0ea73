"""Products of Llama-3.1-8B's shapes: bfloat16 by cuBLAS, weights of 4 and 8 bits by our kernels."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tests.bench.gpu_quantized import random_matrix
from tests.bench.kernels.harness import Case, sets_beyond_cache
from torch.nn import functional

from octavo_kernels.gpu.packed_linear import dequantize
from octavo_kernels.gpu.packed_linear import packed_linear as plain_packed_linear
from octavo_kernels.linear_ops import RowNorm
from octavo_kernels.quant_ops import (
    PackedWeight,
    fused_packed_linear,
    packed_linear,
    quantize_tokens,
    scaled_linear,
    single_row_packed_linear,
)

SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
NUM_TOKENS = (1, 16, 32, 64, 128, 256, 512)
FP8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Shape:
    name: str
    num_rows: int
    width: int
    num_tokens: int

    def case(
        self,
        kernel: str,
        launch: Callable[[int], object],
        num_sets: int,
        num_bytes: int,
        *,
        flops_share: float = 1.0,
    ) -> Case:
        """flops_share: of the time that a product takes in bfloat16."""
        return Case(
            f"{kernel} {self.name} T={self.num_tokens}",
            launch,
            num_sets,
            num_bytes + 2 * self.num_tokens * (self.width + self.num_rows),
            2.0 * self.num_rows * self.width * self.num_tokens * flops_share,
        )

    def tokens(self) -> torch.Tensor:
        shape = (self.num_tokens, self.width)
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def cases() -> Iterator[Case]:
    for name, (num_rows, width) in SHAPES.items():
        yield _dequantize(name)
        for kind in ("int4", "fp8"):
            yield _single_row(Shape(name, num_rows, width, 1), kind)
        for num_tokens in NUM_TOKENS:
            shape = Shape(name, num_rows, width, num_tokens)
            yield _dense(shape)
            yield _packed(shape, "int4")
            if num_tokens <= 64:
                yield _packed(shape, "fp8")
                yield _plain(shape, "int4")
            if num_tokens >= 32:
                yield _scaled(shape)
            yield _quantize(shape)


def _dense(shape: Shape) -> Case:
    num_bytes = 2 * shape.num_rows * shape.width
    num_sets = sets_beyond_cache(num_bytes)
    size = (num_sets, shape.num_rows, shape.width)
    weights = torch.randn(size, device="cuda", dtype=torch.bfloat16)
    x = shape.tokens()
    return shape.case(
        "linear bfloat16", lambda i: functional.linear(x, weights[i]), num_sets, num_bytes
    )


def _packed(shape: Shape, kind: str) -> Case:
    weights, num_bytes = _weights(shape, kind)
    product = _product(shape.num_tokens, kind, gated=shape.name == "gate_up")
    x = shape.tokens()
    return shape.case(
        f"packed_linear {kind}", lambda i: product(x, weights[i]), len(weights), num_bytes
    )


def _single_row(shape: Shape, kind: str) -> Case:
    """With what the decoder fuses around it."""
    weights, num_bytes = _weights(shape, kind)
    x, gated = shape.tokens(), shape.name == "gate_up"
    norm = None if shape.name in ("o", "down") else RowNorm(x[0], 0.0, 1e-5)
    residual = x.new_zeros(1, shape.num_rows) if norm is None else None

    def launch(i: int) -> object:
        return single_row_packed_linear(x, weights[i], gated=gated, norm=norm, residual=residual)

    return shape.case(f"single_row_packed_linear {kind}", launch, len(weights), num_bytes)


def _plain(shape: Shape, kind: str) -> Case:
    """By the kernel for GPUs other than Hopper's."""
    weights, num_bytes = _weights(shape, kind)
    x = shape.tokens()
    return shape.case(
        f"plain packed_linear {kind}",
        lambda i: plain_packed_linear(x, weights[i], None),
        len(weights),
        num_bytes,
    )


def _dequantize(name: str) -> Case:
    """As products of very many tokens begin."""
    shape = Shape(name, *SHAPES[name], 0)
    weights, num_bytes = _weights(shape, "int4")
    return Case(
        f"dequantize int4 {name}",
        lambda i: dequantize(weights[i], torch.bfloat16),
        len(weights),
        num_bytes + 2 * shape.num_rows * shape.width,
    )


def _scaled(shape: Shape) -> Case:
    weights, num_bytes = _weights(shape, "fp8")
    values, scales = quantize_tokens(shape.tokens(), FP8)
    return shape.case(
        "scaled_linear fp8",
        lambda i: scaled_linear(values, scales, weights[i], None, torch.bfloat16),
        len(weights),
        num_bytes,
        flops_share=0.5,
    )


def _quantize(shape: Shape) -> Case:
    x = shape.tokens()
    num_bytes = 3 * shape.num_tokens * shape.width
    return Case(
        f"quantize_tokens fp8 {shape.name} T={shape.num_tokens}",
        lambda i: quantize_tokens(x, FP8),
        4,
        num_bytes,
    )


def _weights(shape: Shape, kind: str) -> tuple[list[PackedWeight], int]:
    """So many that they do not stay in the cache, and the bytes of one."""
    size, device = (shape.num_rows, shape.width), torch.device("cuda")
    first = random_matrix(kind, size, device).pack()[0]
    num_more = sets_beyond_cache(first.num_bytes) - 1
    more = [random_matrix(kind, size, device).pack()[0] for _ in range(num_more)]
    return [first, *more], first.num_bytes


def _product(
    num_tokens: int, kind: str, *, gated: bool
) -> Callable[[torch.Tensor, PackedWeight], object]:
    """The kernel that a decoder's steps take, with as little around it as there may be."""
    if num_tokens > 64:
        return packed_linear
    if num_tokens == 1 and not (gated and kind == "int4"):
        return lambda x, weight: single_row_packed_linear(x, weight, gated=gated)
    return lambda x, weight: fused_packed_linear(x, weight, gated=gated)
