"""silu_mul and gelu_tanh_mul against their references in float32."""

from collections.abc import Callable

import pytest
import torch

from octavo_kernels.gpu import gated_mul
from octavo_kernels.reference import gated_mul as reference


@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
@pytest.mark.parametrize("shape", [(1, 2 * 37), (3, 2 * 1536), (4, 2 * 1025), (0, 64)])
def test_matches_the_reference(
    name: str, shape: tuple[int, int], dtype: torch.dtype, device: torch.device,
    generator: torch.Generator, assert_close: Callable[..., None],
) -> None:  # fmt: skip
    gate_up = (3 * torch.randn(shape, generator=generator, device=device)).to(dtype)
    out = getattr(gated_mul, name)(gate_up)
    exact = getattr(reference, name)(gate_up.float())
    if not gate_up.numel():
        assert out.shape == exact.shape
        return
    assert_close(out, exact, dtype)


@pytest.mark.parametrize("name", ["silu_mul", "gelu_tanh_mul"])
def test_large_gates_saturate_without_nan(name: str, device: torch.device) -> None:
    gate_up = torch.tensor([[-1e4, 1e4, 0.0, 2.0, 2.0, 2.0]], device=device)
    out = getattr(gated_mul, name)(gate_up)
    assert out.tolist() == [[0.0, 2e4, 0.0]]


def test_an_odd_width_is_refused(device: torch.device) -> None:
    with pytest.raises(ValueError, match="2I"):
        gated_mul.silu_mul(torch.zeros(1, 3, device=device))
