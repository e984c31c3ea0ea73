"""RMSNorm against its reference in float32."""

from collections.abc import Callable

import pytest
import torch

from octavo_kernels.gpu.rms_norm import add_parts_rms_norm, rms_norm
from octavo_kernels.reference.rms_norm import rms_norm as reference

Check = Callable[..., None]


@pytest.mark.parametrize(
    "shape", [(1, 64), (3, 576), (5, 100), (2, 4096), (0, 64), (2, 3, 128), (7, 5, 80)]
)
@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_matches_the_reference(
    shape: tuple[int, ...], offset: float, dtype: torch.dtype, device: torch.device,
    generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    x = torch.randn(shape, generator=generator, device=device).to(dtype)
    weight = torch.randn(shape[-1], generator=generator, device=device).to(dtype)
    y = rms_norm(x, weight, 1e-5, weight_offset=offset)
    assert isinstance(y, torch.Tensor)
    into = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-5, weight_offset=offset, out=into)
    assert torch.equal(into, y)
    if not x.numel():
        assert y.shape == x.shape
        return
    exact = reference(x.float(), weight.float(), 1e-5, weight_offset=offset)
    assert_close(y, exact, dtype)


@pytest.mark.parametrize("shape", [(1, 64), (3, 576), (2, 4096)])
def test_adds_the_residual_and_norms_the_rounded_sum(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device,
    generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    x = torch.randn(shape, generator=generator, device=device).to(dtype)
    residual = (4 * torch.randn(shape, generator=generator, device=device)).to(dtype)
    weight = torch.randn(shape[-1], generator=generator, device=device).to(dtype)
    y, new_residual = rms_norm(x, weight, 1e-6, residual=residual)
    assert torch.equal(new_residual, x + residual)
    assert_close(y, reference((x + residual).float(), weight.float(), 1e-6), dtype)


def test_reads_heads_of_a_packed_projection_in_place(
    device: torch.device, generator: torch.Generator, assert_close: Check
) -> None:
    packed = torch.randn(3, 10 * 64, generator=generator, device=device)
    keys = packed[:, 4 * 64 : 7 * 64].view(3, 3, 64)
    weight = torch.randn(64, generator=generator, device=device)
    assert_close(rms_norm(keys, weight, 1e-5), reference(keys, weight, 1e-5), torch.float32)


def test_small_values_are_not_lost_in_eps(device: torch.device, assert_close: Check) -> None:
    x = torch.full((1, 64), 1e-4, device=device)
    y = rms_norm(x, torch.ones(64, device=device), 1e-12)
    assert_close(y, torch.full_like(x, 1 / (1 + 1e-4) ** 0.5), torch.float32)


def test_a_last_dimension_with_gaps_is_refused(device: torch.device) -> None:
    x = torch.zeros(2, 8, device=device).t()
    with pytest.raises(ValueError, match="last stride 1"):
        rms_norm(x, torch.ones(2, device=device), 1e-5)


@pytest.mark.parametrize(("num_parts", "shape"), [(2, (3, 576)), (4, (2, 4096)), (3, (1, 64))])
def test_adds_parts_and_the_residual_and_rounds_once(
    num_parts: int, shape: tuple[int, int], dtype: torch.dtype, device: torch.device,
    generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    parts = torch.randn((num_parts, *shape), generator=generator, device=device)
    residual = (4 * torch.randn(shape, generator=generator, device=device)).to(dtype)
    weight = torch.randn(shape[-1], generator=generator, device=device).to(dtype)
    y, total = add_parts_rms_norm(parts, residual, weight, 1e-6, weight_offset=1.0)
    exact = parts.double().sum(dim=0) + residual.double()
    assert_close(total, exact.float(), dtype)
    assert_close(y, reference(total.float(), weight.float(), 1e-6, weight_offset=1.0), dtype)
