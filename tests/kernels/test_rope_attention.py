"""Decode attention that rotates and stores the new token itself, against three separate steps."""

from collections.abc import Callable

import pytest
import torch
from tests.kernels.attention_case import AttentionCase, make_case
from tests.kernels.test_rope import make_tables

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import DecodeConfig, decode_attention
from octavo_kernels.gpu.decode_rotation import Rotation
from octavo_kernels.gpu.schedule import plan_decode
from octavo_kernels.reference.kv_write import kv_write
from octavo_kernels.reference.rms_norm import rms_norm
from octavo_kernels.reference.rope import apply_rope

Check = Callable[..., None]
SEQ_LENS = [300, 1, 65, 64, 129]
BLOCK_SIZE = 64
EPS = 1e-6
FACTOR = 3.0


def decode_case(
    heads: tuple[int, int], head_dim: int, dtype: torch.dtype, generator: torch.Generator,
    window: int | None = None,
) -> AttentionCase:  # fmt: skip
    return make_case(
        [1] * len(SEQ_LENS), SEQ_LENS, num_decode_rows=len(SEQ_LENS), num_q_heads=heads[0],
        num_kv_heads=heads[1], head_dim=head_dim, block_size=BLOCK_SIZE, dtype=dtype,
        generator=generator, window=window,
    )  # fmt: skip


def new_token(
    case: AttentionCase,
    rotated: int,
    generator: torch.Generator,
    *,
    normed: bool,
    interleaved: bool,
) -> Rotation:
    """Keys and values in a packed projection, slots at each row's end."""
    device, dtype = case.q.device, case.q.dtype
    num_kv_heads, _, head_dim = case.k_cache.shape[1:]
    rows = len(SEQ_LENS)
    packed = torch.randn(rows, 2, num_kv_heads, head_dim, generator=generator, device=device)
    packed = packed.to(dtype)
    positions = case.metadata.seq_lens.long() - 1
    pages = case.metadata.block_table.long().gather(1, positions[:, None] // BLOCK_SIZE)[:, 0]
    weights = torch.randn(2, head_dim, generator=generator, device=device).to(dtype)
    cos, sin = make_tables(rotated, device)
    return Rotation(
        k=packed[:, 0],
        v=packed[:, 1],
        cos=cos,
        sin=sin,
        positions=positions,
        slots=pages * BLOCK_SIZE + positions % BLOCK_SIZE,
        interleaved=interleaved,
        qk_norm=(weights[0], weights[1]) if normed else None,
        eps=EPS,
    )


def run(
    case: AttentionCase, rotation: Rotation, options: AttentionOptions, target: int,
    *, keys_first: bool = False, use_tma: bool = False,
) -> torch.Tensor:  # fmt: skip
    plan = plan_decode(
        case.metadata.seq_lens,
        num_kv_heads=case.k_cache.shape[1],
        window=options.window,
        target_items=target,
    )
    config = DecodeConfig(32, keys_first, use_tma=use_tma, num_warps=4, num_stages=2)
    out = torch.empty_like(case.q)
    decode_attention(
        case.q, case.k_cache, case.v_cache, out, plan, case.metadata.block_table, config, options,
        rotation,
    )  # fmt: skip
    return out


def in_steps(case: AttentionCase, rotation: Rotation, options: AttentionOptions) -> torch.Tensor:
    """The same by references: norm, rotation, write, dense attention. Fills other caches."""
    q, k = case.q.clone(), rotation.k.contiguous()
    if rotation.qk_norm is not None:
        q, k = (
            rms_norm(x, weight, EPS) for x, weight in zip((q, k), rotation.qk_norm, strict=True)
        )
    apply_rope(
        q, k, rotation.cos, rotation.sin, rotation.positions, interleaved=rotation.interleaved
    )
    k_cache, v_cache = case.k_cache.clone(), case.v_cache.clone()
    kv_write(k, rotation.v.contiguous(), k_cache, v_cache, rotation.slots)
    for row, length in enumerate(SEQ_LENS):
        case.dense_keys[row][length - 1] = k[row]
        case.dense_values[row][length - 1] = rotation.v[row]
    written = AttentionCase(q, k_cache, v_cache, case.metadata, case.dense_keys, case.dense_values)
    return written.oracle(options)


@pytest.mark.parametrize("keys_first", [False, True])
@pytest.mark.parametrize("target", [1, 6], ids=["whole rows", "pieces"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "rotated", "normed", "interleaved"),
    [
        ((4, 1), 64, 64, False, False),
        ((6, 2), 64, 32, True, False),
        ((3, 3), 80, 80, True, True),
    ],
)
def test_fused_is_what_the_steps_give(
    keys_first: bool, target: int, heads: tuple[int, int], head_dim: int, rotated: int,
    normed: bool, interleaved: bool, dtype: torch.dtype, generator: torch.Generator,
    assert_close: Check,
) -> None:  # fmt: skip
    case = decode_case(heads, head_dim, dtype, generator)
    rotation = new_token(case, rotated, generator, normed=normed, interleaved=interleaved)
    options = AttentionOptions(scale=head_dim**-0.5)
    out = run(case, rotation, options, target, keys_first=keys_first)
    assert_close(out, in_steps(case, rotation, options), dtype, FACTOR)


@pytest.mark.parametrize("window", [1, 2, 64, 65, 299, 300])
def test_fused_sees_its_window_soft_cap_and_sinks(
    window: int, generator: torch.Generator, assert_close: Check
) -> None:
    case = decode_case((4, 2), 64, torch.float32, generator, window)
    rotation = new_token(case, 64, generator, normed=False, interleaved=False)
    sinks = torch.tensor([0.0, 3.0, -2.0, 1.0], device=generator.device)
    options = AttentionOptions(scale=0.5, window=window, softcap=8.0, sinks=sinks)
    out = run(case, rotation, options, 6, use_tma=True)
    assert_close(out, in_steps(case, rotation, options), torch.float32, FACTOR)


def test_the_new_token_alone_changes_in_the_pages(generator: torch.Generator) -> None:
    case = decode_case((4, 2), 64, torch.float16, generator)
    rotation = new_token(case, 64, generator, normed=False, interleaved=False)
    before = [case.k_cache.clone(), case.v_cache.clone()]
    run(case, rotation, AttentionOptions(scale=0.125), 6)
    keys = rotation.k.contiguous().float()
    apply_rope(keys.clone(), keys, rotation.cos, rotation.sin, rotation.positions)
    kv_write(keys.half(), rotation.v.contiguous(), before[0], before[1], rotation.slots)
    torch.testing.assert_close(case.k_cache, before[0], equal_nan=True, rtol=2e-3, atol=1e-3)
    assert torch.equal(case.v_cache.nan_to_num(), before[1].nan_to_num())


def test_a_padding_row_writes_nothing_and_stays_finite(generator: torch.Generator) -> None:
    case = decode_case((4, 2), 64, torch.float32, generator)
    rotation = new_token(case, 64, generator, normed=False, interleaved=False)
    case.metadata.seq_lens[1] = 0
    rotation.slots[1] = -1
    rotation.positions[1] = 0
    page = case.metadata.block_table[1, 0]
    before = case.k_cache[page].clone()
    out = run(case, rotation, AttentionOptions(scale=0.125), 3)
    assert torch.isfinite(out).all()
    assert torch.equal(case.k_cache[page], before)
