"""Pages and rows that lie more than 2**31 elements behind the first: 32-bit offsets would wrap.

The memory is reserved and never touched but where the ops write and read, so it costs none.
"""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.kernels.attention_case import AttentionCase, make_case

from octavo_kernels import ops
from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import DecodeConfig, decode_attention
from octavo_kernels.gpu.kv_write import kv_write
from octavo_kernels.gpu.paged_attention import paged_attention
from octavo_kernels.gpu.rms_norm import rms_norm
from octavo_kernels.gpu.rope import rope_kv_write
from octavo_kernels.gpu.schedule import plan_decode
from octavo_kernels.reference.rms_norm import rms_norm as plain_rms_norm

Check = Callable[..., None]
FAR = 2**31
"""Elements."""
BLOCK_SIZE, NUM_HEADS, HEAD_DIM = 64, 2, 64
BLOCK_LEN = NUM_HEADS * BLOCK_SIZE * HEAD_DIM
FIRST_FAR_BLOCK = FAR // BLOCK_LEN
NUM_NEAR = 16
"""Blocks on the far side."""
OPTIONS = AttentionOptions(scale=0.125)


def untouched(num_elements: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros as the system hands them out; `torch.empty` is poisoned here, every page of it."""
    storage = torch.UntypedStorage(num_elements * dtype.itemsize, device=device)
    return torch.tensor([], dtype=dtype, device=device).set_(storage)


def far_caches(dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of more blocks than 32 bits reach, in one memory: block b of V is block
    b + NUM_NEAR of K."""
    num_blocks = FIRST_FAR_BLOCK + NUM_NEAR
    memory = untouched((num_blocks + NUM_NEAR) * BLOCK_LEN, dtype, device)
    shape = (num_blocks, NUM_HEADS, BLOCK_SIZE, HEAD_DIM)
    return memory[: num_blocks * BLOCK_LEN].view(shape), memory[NUM_NEAR * BLOCK_LEN :].view(shape)


def far_case(
    query_lens: list[int], seq_lens: list[int], num_decodes: int, dtype: torch.dtype,
    generator: torch.Generator,
) -> AttentionCase:  # fmt: skip
    """A step whose pages all lie on the far side."""
    case = make_case(
        query_lens, seq_lens, num_decode_rows=num_decodes, num_q_heads=3 * NUM_HEADS,
        num_kv_heads=NUM_HEADS, head_dim=HEAD_DIM, block_size=BLOCK_SIZE, dtype=dtype,
        generator=generator,
    )  # fmt: skip
    caches = far_caches(dtype, generator.device)
    for far, near in zip(caches, (case.k_cache, case.v_cache), strict=True):
        far[FIRST_FAR_BLOCK : FIRST_FAR_BLOCK + len(near)] = near.nan_to_num()
    metadata = dataclasses.replace(
        case.metadata, block_table=case.metadata.block_table + FIRST_FAR_BLOCK
    )
    return dataclasses.replace(case, k_cache=caches[0], v_cache=caches[1], metadata=metadata)


@pytest.mark.parametrize("keys_first", [False, True])
@pytest.mark.parametrize("use_tma", [False, True])
def test_decode_reads_far_pages(
    keys_first: bool, use_tma: bool, generator: torch.Generator, assert_close: Check
) -> None:
    case = far_case([1, 1], [100, 64], 2, torch.float16, generator)
    config = DecodeConfig(64, keys_first, use_tma=use_tma, num_warps=4, num_stages=2)
    plan = plan_decode(case.metadata.seq_lens, num_kv_heads=NUM_HEADS, window=None, target_items=3)
    out = torch.empty_like(case.q)
    decode_attention(
        case.q, case.k_cache, case.v_cache, out, plan, case.metadata.block_table, config, OPTIONS
    )
    assert_close(out, case.oracle(OPTIONS), torch.float16, 3.0)


def test_a_mixed_step_reads_far_pages(generator: torch.Generator, assert_close: Check) -> None:
    case = far_case([1, 40], [100, 70], 1, torch.float16, generator)
    out = paged_attention(case.q, case.k_cache, case.v_cache, case.metadata, scale=OPTIONS.scale)
    assert_close(out, case.oracle(OPTIONS), torch.float16, 3.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_cpu_reads_far_pages(dtype: torch.dtype, assert_close: Check) -> None:
    cpu = torch.Generator().manual_seed(20261130)
    case = far_case([1, 1, 40], [100, 64, 70], 2, dtype, cpu)
    out = ops.paged_attention(
        case.q, case.k_cache, case.v_cache, case.metadata, scale=OPTIONS.scale
    )
    assert_close(out, case.oracle(OPTIONS), dtype, 3.0)


def check_far_writes(
    write: Callable[..., None], dtype: torch.dtype, generator: torch.Generator
) -> None:
    """Lets `write(k, v, k_cache, v_cache, slots)` write to both sides; sees where it did."""
    device = generator.device
    caches = far_caches(dtype, device)
    k, v = torch.randn(2, 3, NUM_HEADS, HEAD_DIM, generator=generator, device=device).to(dtype)
    blocks, offsets = [0, FIRST_FAR_BLOCK, FIRST_FAR_BLOCK + 9], [3, 0, 63]
    slots = torch.tensor(blocks, device=device) * BLOCK_SIZE + torch.tensor(offsets, device=device)
    write(k, v, *caches, slots)
    for idx, (block, offset) in enumerate(zip(blocks, offsets, strict=True)):
        assert torch.equal(caches[0][block, :, offset], k[idx])
        assert torch.equal(caches[1][block, :, offset], v[idx])


def unrotated(rope_kv_write: Callable[..., None]) -> Callable[..., None]:
    """As a plain write: by an angle of 0."""

    def write(k: torch.Tensor, v: torch.Tensor, *caches_and_slots: torch.Tensor) -> None:
        cos = torch.ones(1, HEAD_DIM // 2, device=k.device)
        positions = torch.zeros(len(k), dtype=torch.int64, device=k.device)
        rope_kv_write(k.clone(), k, v, cos, torch.zeros_like(cos), positions, *caches_and_slots)

    return write


@pytest.mark.parametrize("write", [kv_write, unrotated(rope_kv_write)])
def test_far_pages_are_written(write: Callable[..., None], generator: torch.Generator) -> None:
    check_far_writes(write, torch.float16, generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("write", [ops.kv_write, unrotated(ops.rope_kv_write)])
def test_the_cpu_writes_to_far_pages(write: Callable[..., None], dtype: torch.dtype) -> None:
    check_far_writes(write, dtype, torch.Generator().manual_seed(20261130))


def test_rows_may_lie_far_apart(generator: torch.Generator, assert_close: Check) -> None:
    memory = untouched(FAR + 3 * 64, torch.float16, generator.device)
    x = memory.as_strided((3, 64), (FAR // 2 + 64, 1))
    x.copy_(torch.randn(3, 64, generator=generator, device=generator.device))
    weight = torch.ones(64, dtype=torch.float16, device=generator.device)
    assert_close(rms_norm(x, weight, 1e-6), plain_rms_norm(x.float(), weight, 1e-6), x.dtype)
