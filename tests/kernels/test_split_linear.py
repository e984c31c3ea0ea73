"""Products in parts: where they are taken, and that the parts add up."""

import pytest
import torch
from torch.nn import functional

from octavo_kernels import linear_ops
from octavo_kernels.linear_ops import (
    NUM_PARTS,
    PendingProduct,
    add_parts_rms_norm,
    pays_to_split,
    split_linear,
)
from octavo_kernels.reference.rms_norm import rms_norm as reference

CORES_OF_H200 = 132


@pytest.mark.parametrize(
    ("num_tokens", "num_rows", "width", "expected"),
    [
        (64, 4096, 14336, False),  # those few go with their norms and sums
        (65, 4096, 14336, True),
        (128, 4096, 14336, True),
        (256, 4096, 14336, True),
        (257, 4096, 14336, False),
        (128, 8192, 28672, True),
        (256, 8192, 28672, False),  # tiles for all cores
        (128, 4096, 4096, False),  # parts too short to be worth their sums
        (128, 4096, 14336 + 32, False),
    ],
)
def test_parts_where_whole_tiles_leave_half_of_the_cores_idle(
    num_tokens: int, num_rows: int, width: int, expected: bool
) -> None:
    assert pays_to_split(num_tokens, num_rows, width, CORES_OF_H200) is expected
    assert not pays_to_split(num_tokens, num_rows, width, 0), "a CPU"


@pytest.mark.parametrize("num_tokens", [1, 65, 128])
def test_parts_add_up_to_the_product_and_its_norm(
    num_tokens: int, device: torch.device, generator: torch.Generator
) -> None:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    x = torch.randn(num_tokens, 512, generator=generator, device=device).to(dtype)
    weight = (0.1 * torch.randn(256, 512, generator=generator, device=device)).to(dtype)
    residual = torch.randn(num_tokens, 256, generator=generator, device=device).to(dtype)
    gamma = torch.randn(256, generator=generator, device=device).to(dtype)
    parts = split_linear(x, weight)
    assert parts.shape == (NUM_PARTS, num_tokens, 256)
    assert parts.dtype == torch.float32
    exact = functional.linear(x.double(), weight.double())
    torch.testing.assert_close(parts.sum(dim=0).double(), exact, rtol=0, atol=1e-4)
    y, total = add_parts_rms_norm(parts, residual, gamma, 1e-5)
    limit = 0.05 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(total.double(), exact + residual.double(), rtol=0, atol=limit)
    expected = reference(total.float(), gamma.float(), 1e-5)
    torch.testing.assert_close(y.float(), expected, rtol=1e-2, atol=limit)
    in_place = PendingProduct(x, weight).add_to(residual)
    assert in_place is residual
    torch.testing.assert_close(in_place, total, rtol=1e-2, atol=limit)


def test_on_a_cpu_products_stay_whole() -> None:
    x, weight = torch.ones(100, 8192), torch.ones(4, 8192)
    assert linear_ops.linear_for_norm(x, weight).shape == (100, 4)
