"""Pages in e4m3 with a scale a head: written, rotated and attended like their reference.

Under the interpreter, whose rounding to 8 bits drops carries, only numbers that need no rounding
are written; a GPU gets any.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.kernels.attention_case import AttentionCase, make_case
from tests.kernels.conftest import ON_GPU

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.kv_write import kv_write
from octavo_kernels.gpu.paged_attention import paged_attention
from octavo_kernels.gpu.rope import rope_kv_write
from octavo_kernels.metadata import PAGE_MAX, AttentionRule, KVScales
from octavo_kernels.reference import kv_write as reference
from octavo_kernels.reference.paged_attention import paged_attention as reference_attention
from octavo_kernels.reference.rope import apply_rope

E4M3 = torch.float8_e4m3fn
HEADS, DIM, PAGE = 2, 64, 16


def make_scales(num_heads: int, device: torch.device) -> KVScales:
    steps = torch.arange(num_heads, device=device)
    return KVScales(2.0**-6 * 2.0**steps, 2.0**-7 * 0.5**steps)


def written_numbers(
    num_tokens: int, scale: torch.Tensor, generator: torch.Generator
) -> torch.Tensor:
    """[T, Hkv, D]."""
    shape = (num_tokens, len(scale), DIM)
    numbers = torch.randn(shape, generator=generator, device=scale.device)
    return numbers if ON_GPU else (numbers / scale[:, None]).to(E4M3).float() * scale[:, None]


def pages(device: torch.device) -> torch.Tensor:
    return torch.zeros(2, 4, HEADS, PAGE, DIM, device=device).to(E4M3)


def test_a_write_stores_the_nearest_number_and_saturates(
    dtype: torch.dtype, device: torch.device, generator: torch.Generator
) -> None:
    scales = make_scales(HEADS, device)
    k, v = (written_numbers(5, scale, generator).to(dtype) for scale in (scales.k, scales.v))
    k[0, 0, 0], v[1, 1, 1] = 1000.0, -1000.0
    slots = torch.tensor([0, 3 * PAGE - 1, -1, PAGE, 7], device=device)
    written, expected = pages(device), pages(device)
    kv_write(k, v, written[0], written[1], slots, scales)
    reference.kv_write(k, v, expected[0], expected[1], slots, scales=scales)
    assert torch.equal(written.view(torch.uint8), expected.view(torch.uint8))
    assert written[0, 0, 0, 0, 0].float() == PAGE_MAX
    assert written[1, 2, 1, PAGE - 1, 1].float() == -PAGE_MAX


def test_rotated_keys_are_stored_in_units_of_their_heads_scale(
    device: torch.device, generator: torch.Generator
) -> None:
    scales = make_scales(HEADS, device)
    q = torch.randn(3, 4, DIM, generator=generator, device=device)
    k, v = (written_numbers(3, scale, generator) for scale in (scales.k, scales.v))
    # By whole quarters of a turn, numbers stay what they are.
    turns = torch.randint(4, (10, DIM // 2), generator=generator, device=device)
    angles = turns * (torch.pi / 2)
    cos, sin = angles.cos().round(), angles.sin().round()
    positions, slots = (torch.tensor(x, device=device) for x in ([1, 5, 9], [0, 20, -1]))
    written, expected = pages(device), pages(device)
    rotated_k = k.clone()
    apply_rope(q.clone(), rotated_k, cos, sin, positions)
    reference.kv_write(rotated_k, v, expected[0], expected[1], slots, scales=scales)
    rope_kv_write(q, k, v, cos, sin, positions, written[0], written[1], slots, scales=scales)
    assert written[0].float().abs().sum() > 0
    assert torch.equal(written.float(), expected.float())


def narrow_case(case: AttentionCase, scales: KVScales) -> AttentionCase:
    """The same step over pages in e4m3, and what these stand for."""

    def units(cache: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        return (cache.float() / scale[:, None, None]).clamp(-PAGE_MAX, PAGE_MAX).to(E4M3)

    def meant(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        stored = (rows.float() / scale[:, None]).clamp(-PAGE_MAX, PAGE_MAX).to(E4M3)
        return stored.float() * scale[:, None]

    return dataclasses.replace(
        case,
        k_cache=units(case.k_cache, scales.k),
        v_cache=units(case.v_cache, scales.v),
        dense_keys=[meant(rows, scales.k) for rows in case.dense_keys],
        dense_values=[meant(rows, scales.v) for rows in case.dense_values],
    )


@pytest.mark.parametrize(
    ("num_rows", "softcap"), [(3, 20.0), (25, None)], ids=["queries first", "keys first"]
)
def test_attention_reads_what_the_pages_stand_for(
    num_rows: int, softcap: float | None, dtype: torch.dtype, generator: torch.Generator,
    assert_close: Callable[..., None],
) -> None:  # fmt: skip
    decodes = [90, 1, 33, *[5] * (num_rows - 3)]
    num_kv_heads = 3 if num_rows == 3 else 1
    case = make_case(
        [1] * num_rows + [20], [*decodes, 45], num_decode_rows=num_rows,
        num_q_heads=2 * num_kv_heads, num_kv_heads=num_kv_heads, head_dim=DIM, block_size=PAGE,
        dtype=dtype, generator=generator,
    )  # fmt: skip
    scales = make_scales(num_kv_heads, generator.device)
    case = narrow_case(case, scales)
    options = AttentionOptions(scale=DIM**-0.5, softcap=softcap)
    arguments = (case.q, case.k_cache, case.v_cache, case.metadata)
    exact = case.oracle(options)
    out = paged_attention(*arguments, scale=options.scale, softcap=softcap, scales=scales)
    assert_close(out, exact, dtype, 2.0)
    rule = AttentionRule(scale=options.scale, softcap=softcap, scales=scales)
    plain = reference_attention(*arguments, rule)
    assert_close(plain, exact, dtype, 2.0)


def test_pages_in_e4m3_without_scales_are_refused(generator: torch.Generator) -> None:
    case = make_case(
        [1], [5], num_decode_rows=1, num_q_heads=1, num_kv_heads=1, head_dim=16, block_size=16,
        dtype=torch.float32, generator=generator,
    )  # fmt: skip
    narrow = [cache.to(E4M3) for cache in (case.k_cache, case.v_cache)]
    with pytest.raises(ValueError, match=r"float8_e4m3fn without scales"):
        paged_attention(case.q, *narrow, case.metadata, scale=1.0)
