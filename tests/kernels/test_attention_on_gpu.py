"""Paged attention in bfloat16 as the wrappers choose it, at shapes beyond the interpreter."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.kernels.attention_case import make_case

from octavo_kernels import KVScales, paged_attention
from octavo_kernels.gpu import hopper_prefill
from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.prefill_attention import prefill_attention, prefill_config
from octavo_kernels.gpu.schedule import cut_tiles

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]

FACTOR = 1.5
"""The weights of keys are rounded to 16 bits before the second product, as the result is after it:
2.3e-3 in bfloat16 where the result alone makes 1.66e-3."""

# query heads, KV heads
GROUPS = [(1, 1), (8, 1), (15, 5), (32, 8), (16, 1), (7, 1)]


@pytest.mark.parametrize("heads", GROUPS)
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("block_size", [16, 64, 1024])
def test_mixed_steps(
    heads: tuple[int, int], head_dim: int, block_size: int,
    generator: torch.Generator, assert_close: Callable[..., None],
) -> None:  # fmt: skip
    case = make_case(
        [1, 1, 1, 1, 200, 1, 65], [1, 64, 777, 4097, 200, 130, 1000], num_decode_rows=4,
        num_q_heads=heads[0], num_kv_heads=heads[1], head_dim=head_dim, block_size=block_size,
        dtype=torch.bfloat16, generator=generator,
    )  # fmt: skip
    options = AttentionOptions(scale=head_dim**-0.5)
    out = paged_attention(case.q, case.k_cache, case.v_cache, case.metadata, scale=options.scale)
    assert_close(out, case.oracle(options), torch.bfloat16, FACTOR)


@pytest.mark.parametrize("seq_lens", [[100_000], [1], [128] * 256, [3000] * 40, [17, 100_000, 900]])
@pytest.mark.parametrize("block_size", [16, 64, 256])
@pytest.mark.parametrize("window", [None, 128, 4096])
def test_decode_lengths(
    seq_lens: list[int], block_size: int, window: int | None,
    generator: torch.Generator, assert_close: Callable[..., None],
) -> None:  # fmt: skip
    rows = len(seq_lens)
    case = make_case(
        [1] * rows, seq_lens, num_decode_rows=rows, num_q_heads=8, num_kv_heads=2, head_dim=128,
        block_size=block_size, dtype=torch.bfloat16, generator=generator, window=window,
    )  # fmt: skip
    options = AttentionOptions(scale=128**-0.5, window=window, softcap=20.0)
    for _ in range(3):
        out = paged_attention(
            case.q, case.k_cache, case.v_cache, case.metadata,
            scale=options.scale, window=window, softcap=20.0,
        )  # fmt: skip
        assert_close(out, case.oracle(options), torch.bfloat16, FACTOR)


@pytest.mark.parametrize(
    ("queries", "length"), [(8192, 8192), (300, 20_000), (129, 129), (64, 4000), (1, 5000)]
)
@pytest.mark.parametrize("block_size", [16, 64, 128, 256])
@pytest.mark.parametrize("window", [None, 1000])
def test_prefill_lengths(
    queries: int, length: int, block_size: int, window: int | None,
    generator: torch.Generator, assert_close: Callable[..., None],
) -> None:  # fmt: skip
    case = make_case(
        [queries, 33], [length, 100], num_decode_rows=0, num_q_heads=4, num_kv_heads=1,
        head_dim=128, block_size=block_size, dtype=torch.bfloat16, generator=generator,
        window=window,
    )  # fmt: skip
    sinks = torch.randn(4, generator=generator, device=case.q.device)
    options = AttentionOptions(scale=128**-0.5, window=window, sinks=sinks)
    out = paged_attention(
        case.q, case.k_cache, case.v_cache, case.metadata,
        scale=options.scale, window=window, sinks=sinks,
    )  # fmt: skip
    assert_close(out, case.oracle(options), torch.bfloat16, FACTOR)


@pytest.mark.parametrize("block_size", [16, 64])
def test_caches_in_eight_bits(
    block_size: int, generator: torch.Generator, assert_close: Callable[..., None]
) -> None:
    case = make_case(
        [1, 1, 100], [3000, 65, 500], num_decode_rows=2, num_q_heads=8, num_kv_heads=2,
        head_dim=128, block_size=block_size, dtype=torch.bfloat16, generator=generator,
    )  # fmt: skip
    narrow = [cache.to(torch.float8_e4m3fn) for cache in (case.k_cache, case.v_cache)]
    k_scale, v_scale = torch.rand(2, 2, generator=generator, device=case.q.device) + 0.5
    dense_keys = [keys.to(torch.float8_e4m3fn).float() for keys in case.dense_keys]
    dense_values = [values.to(torch.float8_e4m3fn).float() for values in case.dense_values]
    case = dataclasses.replace(
        case,
        dense_keys=[keys * k_scale[:, None] for keys in dense_keys],
        dense_values=[values * v_scale[:, None] for values in dense_values],
    )
    scales = KVScales(k_scale, v_scale)
    out = paged_attention(
        case.q, narrow[0], narrow[1], case.metadata, scale=128**-0.5, scales=scales
    )
    assert_close(out, case.oracle(AttentionOptions(scale=128**-0.5)), torch.bfloat16, FACTOR)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "window"),
    [
        ((8, 2), 128, 64, None),
        ((8, 2), 128, 64, 300),
        ((3, 1), 64, 16, 129),
        ((8, 2), 64, 64, None),  # a row's first block may be beyond it
        ((16, 1), 128, 1024, 1),
    ],
)
def test_the_gluon_and_the_plain_prefill_agree(
    heads: tuple[int, int], head_dim: int, block_size: int, window: int | None, dtype: torch.dtype,
    generator: torch.Generator, assert_close: Callable[..., None],
) -> None:  # fmt: skip
    case = make_case(
        [700, 64, 129, 1], [900, 64, 4000, 700], num_decode_rows=0, num_q_heads=heads[0],
        num_kv_heads=heads[1], head_dim=head_dim, block_size=block_size, dtype=dtype,
        generator=generator, window=window,
    )  # fmt: skip
    sinks = torch.randn(heads[0], generator=generator, device=case.q.device)
    options = AttentionOptions(scale=head_dim**-0.5, window=window, sinks=sinks)
    tiles = torch.tensor(cut_tiles(case.metadata), dtype=torch.int32, device=case.q.device)
    assert hopper_prefill.can_run(case.q, case.k_cache, options)
    by_gluon, plain = torch.empty_like(case.q), torch.empty_like(case.q)
    arguments = (case.q, case.k_cache, case.v_cache)
    table = case.metadata.block_table
    hopper_prefill.hopper_prefill_attention(*arguments, by_gluon, tiles, table, options, 132)
    config = prefill_config(head_dim, block_size, 2, tma_possible=True)
    prefill_attention(*arguments, plain, tiles, table, config, options)
    assert_close(by_gluon, plain.float(), dtype, 2 * FACTOR)
