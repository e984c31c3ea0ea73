"""RoPE alone, and fused with QK-norm and the KV write, against the references in float32."""

from collections.abc import Callable

import pytest
import torch

from octavo_kernels.gpu.rope import apply_rope, rope_kv_write
from octavo_kernels.reference.rms_norm import rms_norm
from octavo_kernels.reference.rope import apply_rope as reference

Check = Callable[..., None]
# (query heads, KV heads, head dim, rotated dims)
SHAPES = [(9, 3, 64, 64), (4, 4, 80, 32), (16, 1, 128, 128), (6, 2, 96, 96), (2, 1, 128, 64)]


def make_tables(rotated: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    frequencies = 10000.0 ** (-torch.arange(0, rotated, 2, device=device) / rotated)
    angles = torch.arange(4000, device=device)[:, None] * frequencies
    return angles.cos(), angles.sin()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotates_in_place_within_a_packed_projection(
    shape: tuple[int, int, int, int], interleaved: bool, dtype: torch.dtype, device: torch.device,
    generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    num_q, num_kv, dim, rotated = shape
    packed = torch.randn(4, (num_q + num_kv) * dim, generator=generator, device=device).to(dtype)
    q, k = (x.unflatten(1, (-1, dim)) for x in packed.split([num_q * dim, num_kv * dim], dim=1))
    exact_q, exact_k = q.float().clone(), k.float().clone()
    cos, sin = make_tables(rotated, device)
    positions = torch.tensor([0, 1, 3999, 17], device=device)
    reference(exact_q, exact_k, cos, sin, positions, interleaved=interleaved)
    apply_rope(q, k, cos, sin, positions, interleaved=interleaved)
    assert_close(q, exact_q, dtype)
    assert_close(k, exact_k, dtype)


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_reference_is_a_complex_rotation(
    interleaved: bool, generator: torch.Generator, device: torch.device
) -> None:
    q = torch.randn(2, 1, 8, generator=generator, device=device)
    pairs = q.unflatten(-1, (4, 2)) if interleaved else q.unflatten(-1, (2, 4)).transpose(-1, -2)
    angles = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0]], device=device)
    rotated = torch.view_as_complex(pairs.contiguous()) * torch.exp(1j * angles)[:, None]
    expected = torch.view_as_real(rotated)
    expected = expected.flatten(-2) if interleaved else expected.transpose(-1, -2).flatten(-2)
    reference(
        q,
        q.clone(),
        angles.cos(),
        angles.sin(),
        torch.arange(2, device=device),
        interleaved=interleaved,
    )
    torch.testing.assert_close(q, expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("normed", [False, True])
def test_fused_with_norm_and_kv_write(
    shape: tuple[int, int, int, int], normed: bool, dtype: torch.dtype, device: torch.device,
    generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    num_q, num_kv, dim, rotated = shape
    q = torch.randn(3, num_q, dim, generator=generator, device=device).to(dtype)
    k, v = torch.randn(2, 3, num_kv, dim, generator=generator, device=device).to(dtype)
    cos, sin = make_tables(rotated, device)
    positions = torch.tensor([5, 2500, 0], device=device)
    slots = torch.tensor([33, -1, 16], device=device)
    weights = torch.randn(2, dim, generator=generator, device=device).to(dtype)
    exact_q, exact_k = q.float().clone(), k.float().clone()
    if normed:
        exact_q, exact_k = (
            rms_norm(x, weight, 1e-6).float() for x, weight in zip((q, k), weights, strict=True)
        )
    reference(exact_q, exact_k, cos, sin, positions)
    k_cache, v_cache = torch.full((2, 3, num_kv, 16, dim), 7.0, device=device).to(dtype)
    qk_norm = (weights[0], weights[1]) if normed else None
    rope_kv_write(q, k, v, cos, sin, positions, k_cache, v_cache, slots, qk_norm=qk_norm, eps=1e-6)
    assert_close(q, exact_q, dtype)
    assert_close(k_cache[[2, 1], :, [1, 0]], exact_k[[0, 2]], dtype)
    assert torch.equal(v_cache[[2, 1], :, [1, 0]], v[[0, 2]])
    untouched = torch.ones(3, 16, dtype=torch.bool, device=device)
    untouched[[2, 1], [1, 0]] = False
    for cache in (k_cache, v_cache):
        assert cache.transpose(1, 2)[untouched].eq(7).all()
