"""KV write: every token lands in its slot and nothing else changes."""

import pytest
import torch

from octavo_kernels.gpu.kv_write import kv_write
from octavo_kernels.reference.kv_write import kv_write as reference


@pytest.mark.parametrize(
    ("num_heads", "head_dim", "block_size"), [(1, 64, 16), (3, 80, 32), (8, 128, 64)]
)
def test_matches_the_reference_and_skips_negative_slots(
    num_heads: int, head_dim: int, block_size: int, dtype: torch.dtype, device: torch.device,
    generator: torch.Generator,
) -> None:  # fmt: skip
    k, v = torch.randn(2, 5, num_heads, head_dim, generator=generator, device=device).to(dtype)
    slots = torch.tensor([0, 3 * block_size - 1, -1, block_size, 7], device=device)
    caches = [
        torch.full((4, num_heads, block_size, head_dim), 9.0, device=device).to(dtype)
        for _ in range(4)
    ]
    kv_write(k, v, caches[0], caches[1], slots)
    reference(k, v, caches[2], caches[3], slots)
    assert torch.equal(caches[0], caches[2])
    assert torch.equal(caches[1], caches[3])


def test_a_value_that_is_no_finite_number_is_not_left_to_the_pages_next_owner(
    dtype: torch.dtype, device: torch.device
) -> None:
    k, v = torch.ones(2, 4, 1, 64, device=device).to(dtype)
    for token, wrong in enumerate((float("nan"), float("inf"), float("-inf"))):
        v[token, 0, 5 * token] = wrong
    expected = torch.where(v.isfinite(), v, 0.0)
    for write in (kv_write, reference):
        k_cache, v_cache = torch.zeros(2, 1, 1, 16, 64, device=device).to(dtype)
        write(k, v, k_cache, v_cache, torch.arange(4, device=device))
        assert torch.equal(v_cache[0, 0, :4], expected[:, 0])
        assert torch.equal(k_cache[0, 0, :4], k[:, 0])


def test_the_reference_puts_a_token_where_the_slot_says(device: torch.device) -> None:
    k, v = torch.ones(1, 2, 4, device=device), torch.full((1, 2, 4), 2.0, device=device)
    k_cache, v_cache = torch.zeros(2, 3, 2, 16, 4, device=device)
    reference(k, v, k_cache, v_cache, torch.tensor([16 + 5], device=device))
    assert k_cache[1, :, 5].eq(1).all()
    assert v_cache[1, :, 5].eq(2).all()
    assert k_cache.sum() == 8


def test_reads_strided_heads(device: torch.device, generator: torch.Generator) -> None:
    packed = torch.randn(3, 6 * 16, generator=generator, device=device)
    k, v = packed[:, 32:64].view(3, 2, 16), packed[:, 64:].view(3, 2, 16)
    slots = torch.tensor([2, 1, 0], device=device)
    k_cache, v_cache = torch.zeros(2, 1, 2, 16, 16, device=device)
    kv_write(k, v, k_cache, v_cache, slots)
    assert torch.equal(k_cache[0, :, :3].flip(1).transpose(0, 1), k)
    assert torch.equal(v_cache[0, :, :3].flip(1).transpose(0, 1), v)


def test_caches_of_different_strides_are_refused(device: torch.device) -> None:
    k = torch.zeros(1, 2, 16, device=device)
    k_cache = torch.zeros(1, 2, 16, 16, device=device)
    with pytest.raises(ValueError, match="equal strides"):
        kv_write(
            k,
            k,
            k_cache,
            torch.zeros(1, 16, 2, 16, device=device).transpose(1, 2),
            k[0, 0, :1].long(),
        )
