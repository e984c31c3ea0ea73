"""Paged attention, decode and prefill, against a dense oracle at awkward shapes."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.kernels.attention_case import AttentionCase, make_case

from octavo_kernels.gpu.attention_parts import AttentionOptions
from octavo_kernels.gpu.decode_attention import DecodeConfig, decode_attention
from octavo_kernels.gpu.paged_attention import paged_attention
from octavo_kernels.gpu.prefill_attention import PrefillConfig, prefill_attention
from octavo_kernels.gpu.schedule import cut_tiles, plan_decode, with_schedule
from octavo_kernels.metadata import AttentionRule
from octavo_kernels.reference.paged_attention import paged_attention as reference

Check = Callable[..., None]
# The probabilities are rounded to the dtype before the second product.
FACTOR = 1.5


def run_decode(
    case: AttentionCase, config: DecodeConfig, target: int, options: AttentionOptions
) -> torch.Tensor:
    plan = plan_decode(
        case.metadata.seq_lens,
        num_kv_heads=case.k_cache.shape[1],
        window=options.window,
        target_items=target,
    )
    out = torch.empty_like(case.q)
    for _ in range(2):  # the second run finds the counters as the first left them
        out.fill_(float("nan"))
        decode_attention(
            case.q,
            case.k_cache,
            case.v_cache,
            out,
            plan,
            case.metadata.block_table,
            config,
            options,
        )
    assert plan.arrivals.eq(0).all()
    return out


def decode_case(
    seq_lens: list[int], heads: tuple[int, int], head_dim: int, block_size: int,
    dtype: torch.dtype, generator: torch.Generator, window: int | None = None,
) -> AttentionCase:  # fmt: skip
    return make_case(
        [1] * len(seq_lens), seq_lens, num_decode_rows=len(seq_lens), num_q_heads=heads[0],
        num_kv_heads=heads[1], head_dim=head_dim, block_size=block_size, dtype=dtype,
        generator=generator, window=window,
    )  # fmt: skip


@pytest.mark.parametrize("keys_first", [False, True])
@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "block_n"),
    [
        ((3, 1), 64, 16, 32),
        ((4, 4), 80, 64, 32),
        ((16, 1), 64, 32, 64),
        ((9, 3), 64, 1024, 64),
        ((2, 1), 256, 128, 32),
    ],
)
def test_decode_matches_the_oracle(
    keys_first: bool, heads: tuple[int, int], head_dim: int, block_size: int, block_n: int,
    dtype: torch.dtype, generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    case = decode_case([300, 1, 65], heads, head_dim, block_size, dtype, generator)
    config = DecodeConfig(block_n, keys_first, use_tma=False, num_warps=4, num_stages=2)
    out = run_decode(case, config, 4, AttentionOptions(scale=head_dim**-0.5))
    assert_close(out, case.oracle(AttentionOptions(scale=head_dim**-0.5)), dtype, FACTOR)


@pytest.mark.parametrize("keys_first", [False, True])
def test_decode_through_descriptors(
    keys_first: bool, dtype: torch.dtype, generator: torch.Generator, assert_close: Check
) -> None:
    case = decode_case([200, 64], (4, 2), 64, 64, dtype, generator)
    config = DecodeConfig(64, keys_first, use_tma=True, num_warps=4, num_stages=2)
    out = run_decode(case, config, 4, AttentionOptions(scale=0.125))
    assert_close(out, case.oracle(AttentionOptions(scale=0.125)), dtype, FACTOR)


@pytest.mark.parametrize("window", [1, 63, 64, 65, 199, 200, 1000])
def test_decode_sees_exactly_its_window(
    window: int, generator: torch.Generator, assert_close: Check
) -> None:
    case = decode_case([200, 65], (2, 1), 64, 16, torch.float32, generator, window)
    config = DecodeConfig(32, False, use_tma=False, num_warps=4, num_stages=2)
    out = run_decode(case, config, 3, AttentionOptions(scale=0.125, window=window))
    assert_close(
        out, case.oracle(AttentionOptions(scale=0.125, window=window)), torch.float32, FACTOR
    )


@pytest.mark.parametrize("target", [1, 5])
def test_decode_with_softcap_and_sinks(
    target: int, generator: torch.Generator, assert_close: Check
) -> None:
    case = decode_case([300, 20], (4, 2), 64, 32, torch.float32, generator)
    sinks = torch.tensor([0.0, 3.0, -2.0, 6.0], device=generator.device)
    options = AttentionOptions(scale=1.0, softcap=8.0, sinks=sinks)
    config = DecodeConfig(32, False, use_tma=False, num_warps=4, num_stages=2)
    out = run_decode(case, config, target, options)
    assert_close(out, case.oracle(options), torch.float32, FACTOR)


def test_a_padding_row_gives_zeros(generator: torch.Generator) -> None:
    case = decode_case([40, 40], (2, 1), 64, 16, torch.float32, generator)
    case.metadata.seq_lens[1] = 0
    config = DecodeConfig(32, False, use_tma=False, num_warps=4, num_stages=2)
    assert run_decode(case, config, 3, AttentionOptions(scale=0.125))[1].eq(0).all()


PREFILL = PrefillConfig(block_m=64, block_n=32, use_tma=False, num_warps=4, num_stages=2)


def run_prefill(
    case: AttentionCase, config: PrefillConfig, options: AttentionOptions
) -> torch.Tensor:
    tiles = torch.tensor(cut_tiles(case.metadata), dtype=torch.int32, device=case.q.device)
    out = torch.empty_like(case.q)
    prefill_attention(
        case.q, case.k_cache, case.v_cache, out, tiles, case.metadata.block_table, config, options
    )
    return out


def prefill_case(
    query_lens: list[int], seq_lens: list[int], heads: tuple[int, int], head_dim: int,
    block_size: int, dtype: torch.dtype, generator: torch.Generator, window: int | None = None,
) -> AttentionCase:  # fmt: skip
    return make_case(
        query_lens, seq_lens, num_decode_rows=0, num_q_heads=heads[0], num_kv_heads=heads[1],
        head_dim=head_dim, block_size=block_size, dtype=dtype, generator=generator, window=window,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("heads", "head_dim", "block_size", "config"),
    [
        ((3, 1), 64, 16, PREFILL),
        ((2, 2), 80, 64, PREFILL),
        ((2, 1), 64, 64, dataclasses.replace(PREFILL, block_m=128, block_n=64, use_tma=True)),
        ((1, 1), 256, 1024, PREFILL),
    ],
)
def test_prefill_matches_the_oracle(
    heads: tuple[int, int], head_dim: int, block_size: int, config: PrefillConfig,
    dtype: torch.dtype, generator: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    case = prefill_case([70, 1, 131], [70, 33, 200], heads, head_dim, block_size, dtype, generator)
    out = run_prefill(case, config, AttentionOptions(scale=head_dim**-0.5))
    assert_close(out, case.oracle(AttentionOptions(scale=head_dim**-0.5)), dtype, FACTOR)


@pytest.mark.parametrize("window", [1, 31, 32, 33, 100, 500])
def test_prefill_sees_exactly_its_window(
    window: int, generator: torch.Generator, assert_close: Check
) -> None:
    case = prefill_case([90, 40], [150, 40], (2, 1), 64, 16, torch.float32, generator, window)
    out = run_prefill(case, PREFILL, AttentionOptions(scale=0.125, window=window))
    assert_close(
        out, case.oracle(AttentionOptions(scale=0.125, window=window)), torch.float32, FACTOR
    )


def test_prefill_with_softcap_and_sinks(generator: torch.Generator, assert_close: Check) -> None:
    case = prefill_case([50, 3], [50, 80], (4, 2), 64, 32, torch.float32, generator)
    sinks = torch.tensor([0.0, 3.0, -2.0, 6.0], device=generator.device)
    options = AttentionOptions(scale=1.0, softcap=8.0, sinks=sinks)
    out = run_prefill(case, PREFILL, options)
    assert_close(out, case.oracle(options), torch.float32, FACTOR)


@pytest.mark.parametrize("window", [None, 20])
def test_a_mixed_step_agrees_with_the_cpu_path(
    window: int | None, generator: torch.Generator, assert_close: Check
) -> None:
    case = make_case(
        [1, 1, 60, 1], [100, 17, 60, 30], num_decode_rows=2, num_q_heads=4, num_kv_heads=2,
        head_dim=64, block_size=64, dtype=torch.float32, generator=generator,
    )  # fmt: skip
    arguments = (case.q, case.k_cache, case.v_cache)
    metadata = with_schedule(case.metadata, num_q_heads=4, num_kv_heads=2, window=window)
    out = paged_attention(*arguments, metadata, scale=0.125, window=window)
    exact = case.oracle(AttentionOptions(scale=0.125, window=window))
    assert_close(out, exact, torch.float32, FACTOR)
    plain = reference(*arguments, case.metadata, AttentionRule(scale=0.125, window=window))
    assert_close(plain, exact, torch.float32, FACTOR)


def test_a_schedule_of_another_window_is_refused(generator: torch.Generator) -> None:
    case = decode_case([40], (2, 1), 64, 16, torch.float32, generator)
    metadata = with_schedule(case.metadata, num_q_heads=2, num_kv_heads=1, window=16)
    with pytest.raises(ValueError, match="window of 16, called with None"):
        paged_attention(case.q, case.k_cache, case.v_cache, metadata, scale=1.0)


def test_reads_queries_of_a_packed_projection(
    generator: torch.Generator, assert_close: Check
) -> None:
    case = decode_case([40, 3], (2, 1), 64, 64, torch.float32, generator)
    packed = torch.randn(2, 5 * 64, generator=generator, device=generator.device)
    case = dataclasses.replace(case, q=packed[:, 64 : 3 * 64].view(2, 2, 64))
    out = paged_attention(case.q, case.k_cache, case.v_cache, case.metadata, scale=0.125)
    assert_close(out, case.oracle(AttentionOptions(scale=0.125)), torch.float32, FACTOR)
