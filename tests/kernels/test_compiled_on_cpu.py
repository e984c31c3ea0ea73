"""The kernels that numba compiles for a CPU, in bfloat16, against the references in float32."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from octavo_kernels import AttentionMetadata, SamplingTensors, ops
from octavo_kernels.cpu import run
from octavo_kernels.metadata import AttentionRule
from octavo_kernels.reference.paged_attention import paged_attention as plain_attention
from octavo_kernels.reference.rms_norm import rms_norm as plain_rms_norm
from octavo_kernels.reference.rope import apply_rope as plain_rope

pytest.importorskip("numba")  # an engine without it runs the references

Check = Callable[..., None]
BF16 = torch.bfloat16


@pytest.fixture
def cpu() -> torch.Generator:
    return torch.Generator().manual_seed(20261130)


def test_the_kernels_are_there() -> None:
    assert run.compiled() is not None


@pytest.mark.parametrize("num_tokens", [1, 33, 130])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("has_residual", [False, True])
def test_rms_norm(
    num_tokens: int, offset: float, has_residual: bool, cpu: torch.Generator, assert_close: Check
) -> None:
    x, residual = (torch.randn(num_tokens, 75, generator=cpu).to(BF16) for _ in range(2))
    weight = torch.randn(75, generator=cpu).to(BF16)
    if not has_residual:
        y = ops.rms_norm(x, weight, 1e-3, weight_offset=offset)
        assert_close(y, plain_rms_norm(x.float(), weight, 1e-3, weight_offset=offset), BF16)
        return
    y, total = ops.rms_norm(x, weight, 1e-3, residual=residual, weight_offset=offset)
    assert torch.equal(total, x + residual)
    assert_close(y, plain_rms_norm(total.float(), weight, 1e-3, weight_offset=offset), BF16)


def test_rms_norm_rounds_to_even_and_keeps_a_nan_to_its_row(cpu: torch.Generator) -> None:
    x = torch.randn(3, 64, generator=cpu).to(BF16)
    x[1, 5] = torch.nan
    y, total = ops.rms_norm(x, torch.ones(64, dtype=BF16), 1e-6, residual=x.flip(0))
    assert y[1].isnan().all()
    assert y[::2].isfinite().all()
    assert torch.equal(total[::2], (x + x.flip(0))[::2])


@pytest.mark.parametrize(("head_dim", "rotated"), [(64, 64), (80, 32), (24, 24)])
@pytest.mark.parametrize("num_tokens", [3, 40])
def test_rope_and_kv_write(
    head_dim: int, rotated: int, num_tokens: int, cpu: torch.Generator, assert_close: Check
) -> None:
    packed = torch.randn(num_tokens, 8 * head_dim, generator=cpu).to(BF16)
    q, k, v = (
        part.unflatten(1, (-1, head_dim))
        for part in packed.split([4 * head_dim, 2 * head_dim, 2 * head_dim], dim=1)
    )
    exact_q, exact_k, exact_v = q.float(), k.float(), v.clone()
    v[0, 0, 1], v[2, 1, 3] = torch.inf, torch.nan
    exact_v[0, 0, 1] = exact_v[2, 1, 3] = 0  # for the page's next owner
    angles = torch.randn(500, rotated // 2, generator=cpu)
    positions = torch.randint(0, 500, (num_tokens,), generator=cpu)
    slots = torch.randperm(5 * 16, generator=cpu)[:num_tokens]
    slots[1] = -1
    caches = torch.full((2, 5, 2, 16, head_dim), 9.0, dtype=BF16)
    plain_rope(exact_q, exact_k, angles.cos(), angles.sin(), positions)
    ops.rope_kv_write(q, k, v, angles.cos(), angles.sin(), positions, *caches, slots)
    assert_close(q, exact_q, BF16)
    kept = slots >= 0
    block, offset = slots[kept] // 16, slots[kept] % 16
    assert_close(caches[0][block, :, offset], exact_k[kept], BF16)
    assert torch.equal(caches[1][block, :, offset], exact_v[kept])
    assert int((caches == 9.0).all(dim=-1).sum()) == 2 * 2 * (5 * 16 - int(kept.sum()))


SEQ_LENS = [1, 4, 15, 16, 17, 33, 64, 65, 300]


@pytest.fixture(params=["tiles", "pairs"])
def decode_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the matrix unit, where this CPU has one, and without it."""
    if request.param == "pairs":
        monkeypatch.setattr("octavo_kernels.cpu.tiles.has_tiles", lambda: False)


@pytest.mark.usefixtures("decode_by")
@pytest.mark.parametrize(("num_q", "num_kv", "head_dim"), [(9, 3, 64), (4, 4, 80), (8, 1, 16)])
@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("window", [None, 1, 15, 16, 17, 64])
def test_decode_attention(
    num_q: int, num_kv: int, head_dim: int, block_size: int, window: int | None,
    cpu: torch.Generator, assert_close: Check,
) -> None:  # fmt: skip
    metadata = _metadata(SEQ_LENS, [1] * len(SEQ_LENS), block_size, cpu)
    q, caches = _inputs(metadata, num_q, num_kv, head_dim, cpu)
    out = ops.paged_attention(q, *caches, metadata, scale=0.3, window=window)
    exact = plain_attention(
        q.float(), *caches.float(), metadata, AttentionRule(scale=0.3, window=window)
    )
    assert_close(out, exact, BF16)


def test_decode_attention_of_large_heads_and_many_of_them(
    cpu: torch.Generator, assert_close: Check
) -> None:
    metadata = _metadata(SEQ_LENS, [1] * len(SEQ_LENS), 16, cpu)
    q, caches = _inputs(metadata, 18, 2, 160, cpu)
    out = ops.paged_attention(q, *caches, metadata, scale=0.1)
    assert_close(
        out, plain_attention(q.float(), *caches.float(), metadata, AttentionRule(scale=0.1)), BF16
    )


@pytest.mark.usefixtures("decode_by")
@pytest.mark.parametrize("num_threads", [1, 2])
def test_decode_attention_of_a_row_does_not_depend_on_the_others(
    num_threads: int, cpu: torch.Generator
) -> None:
    metadata = _metadata(SEQ_LENS, [1] * len(SEQ_LENS), 16, cpu)
    q, caches = _inputs(metadata, 9, 3, 64, cpu)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    together = ops.paged_attention(q, *caches, metadata, scale=0.3)
    torch.set_num_threads(before)
    for row, seq_len in enumerate(SEQ_LENS):
        alone = replace(
            metadata, num_rows=1, num_decode_rows=1, seq_lens=metadata.seq_lens[row : row + 1],
            block_table=metadata.block_table[row : row + 1, : -(-seq_len // 16)],
        )  # fmt: skip
        out = ops.paged_attention(q[row : row + 1], *caches, alone, scale=0.3)
        assert torch.equal(out[0], together[row])


@pytest.mark.usefixtures("decode_by")
def test_a_score_far_above_the_others_takes_all(cpu: torch.Generator) -> None:
    metadata = _metadata([40], [1], 16, cpu)
    q, caches = _inputs(metadata, 4, 2, 32, cpu)
    keys, values = caches
    slot = metadata.block_table[0, 1], 0, 5
    keys[slot] = 30 * q[0, 0]
    out = ops.paged_attention(q, keys, values, metadata, scale=10.0)
    assert torch.equal(out[0, 0], values[slot])


@pytest.mark.usefixtures("decode_by")
def test_a_nan_stays_in_its_head(cpu: torch.Generator) -> None:
    metadata = _metadata([40, 17], [1, 1], 16, cpu)
    q, caches = _inputs(metadata, 4, 2, 32, cpu)
    q[1, 2, 5] = torch.nan
    out = ops.paged_attention(q, *caches, metadata, scale=0.2)
    assert out[1, 2].isnan().all()
    out[1, 2] = 0
    assert out.isfinite().all()


def test_rows_that_prefill_stand_behind_those_that_decode(
    cpu: torch.Generator, assert_close: Check
) -> None:
    metadata = _metadata([40, 17, 30, 9], [1, 1, 30, 4], 16, cpu)
    q, caches = _inputs(metadata, 4, 2, 32, cpu)
    out = ops.paged_attention(q, *caches, metadata, scale=0.2)
    exact = plain_attention(q.float(), *caches.float(), metadata, AttentionRule(scale=0.2))
    assert_close(out, exact, BF16, factor=1.5)


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"sinks": torch.ones(4)}])
def test_what_the_kernel_lacks_the_reference_does(
    options: dict[str, float | torch.Tensor], cpu: torch.Generator, assert_close: Check
) -> None:
    metadata = _metadata([40, 17], [1, 1], 16, cpu)
    q, caches = _inputs(metadata, 4, 2, 32, cpu)
    out = ops.paged_attention(q, *caches, metadata, scale=0.2, **options)
    exact = plain_attention(
        q.float(), *caches.float(), metadata, AttentionRule(scale=0.2, **options)
    )
    assert_close(out, exact, BF16)


def test_the_references_serve_without_numba(
    monkeypatch: pytest.MonkeyPatch, cpu: torch.Generator
) -> None:
    monkeypatch.setattr(run, "compiled", lambda: None)
    metadata = _metadata([40, 17], [1, 1], 16, cpu)
    q, caches = _inputs(metadata, 4, 2, 32, cpu)
    out = ops.paged_attention(q, *caches, metadata, scale=0.2)
    assert torch.equal(out, plain_attention(q, *caches, metadata, AttentionRule(scale=0.2)))


def test_argmax_is_that_of_float32(cpu: torch.Generator) -> None:
    rows = torch.randn(5, 5000, generator=cpu).to(BF16)
    rows[1] = -rows[1].abs() - 1
    rows[2] = -rows[2].abs()
    rows[2, 6], rows[2, 7:9] = -0.0, 0.0  # the first of three that are equal
    rows[3, 40:] = torch.inf
    rows[4] = -torch.inf
    ones, zeros = torch.ones(5), torch.zeros(5, dtype=torch.int64)
    params = SamplingTensors(
        temperature=torch.zeros(5), top_k=zeros.int(), top_p=ones, min_p=torch.zeros(5),
        seeds=zeros, positions=zeros, all_greedy=True, any_filter=False,
    )  # fmt: skip
    expected = rows.float().argmax(dim=-1)
    assert expected[2:].tolist() == [6, 40, 0]
    assert torch.equal(ops.sample(rows, params), expected)


def _metadata(
    seq_lens: list[int], query_lens: list[int], block_size: int, cpu: torch.Generator
) -> AttentionMetadata:
    num_columns = -(-max(seq_lens) // block_size)
    blocks = torch.randperm(len(seq_lens) * num_columns, generator=cpu)
    starts = [seq_len - count for seq_len, count in zip(seq_lens, query_lens, strict=True)]
    positions = [
        torch.arange(start, start + count) for start, count in zip(starts, query_lens, strict=True)
    ]
    return AttentionMetadata(
        query_start=torch.tensor([0, *query_lens]).cumsum(0).int(),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=blocks.view(len(seq_lens), num_columns).int(),
        positions=torch.cat(positions),
        num_rows=len(seq_lens),
        num_decode_rows=query_lens.count(1),
        max_query_len=max(query_lens),
        max_seq_len=max(seq_lens),
        block_size=block_size,
        seq_lens_host=seq_lens,
        query_lens_host=query_lens,
    )


def _inputs(
    metadata: AttentionMetadata, num_q: int, num_kv: int, head_dim: int, cpu: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """q as a view of a packed projection, and K and V of all pages."""
    num_tokens = sum(metadata.query_lens_host)
    packed = torch.randn(num_tokens, (num_q + 3) * head_dim, generator=cpu).to(BF16)
    num_blocks = metadata.block_table.numel()
    shape = (2, num_blocks, num_kv, metadata.block_size, head_dim)
    caches = torch.randn(shape, generator=cpu).to(BF16)
    return packed[:, : num_q * head_dim].unflatten(1, (num_q, head_dim)), caches


def test_a_place_for_the_cache_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only container has none, where numba raises."""
    from numba.core import caching

    from octavo_kernels.cpu.words import compiled_once

    monkeypatch.setattr(caching.FunctionCache._impl_class, "_locator_classes", [])
    assert compiled_once(lambda number: number + 1)(2) == 3
