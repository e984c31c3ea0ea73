"""Decode rows share a bucket when their lengths are alike; buckets change no result."""

from dataclasses import replace

import pytest
import torch

from octavo_kernels import AttentionMetadata, paged_attention, prepare_attention
from octavo_kernels.reference.decode_plan import bucket_bounds

NUM_KV_HEADS = 2


@pytest.mark.parametrize(
    ("num_pieces", "expected"),
    [
        ([], []),
        ([7], [(0, 1)]),
        ([1, 2, 3, 4, 8, 16], [(0, 6)]),
        ([40, 20, 19, 9, 8, 1], [(0, 2), (2, 3), (3, 6)]),
        ([1, 30, 1], [(0, 1), (1, 2), (2, 3)]),
    ],
)
def test_rows_of_a_bucket_differ_by_a_factor_of_two(
    num_pieces: list[int], expected: list[tuple[int, int]]
) -> None:
    assert bucket_bounds(num_pieces) == expected


def decode_metadata(seq_lens: list[int], block_size: int) -> AttentionMetadata:
    num_rows = len(seq_lens)
    num_columns = -(-max(seq_lens) // block_size)
    table = 1 + torch.randperm(num_rows * num_columns).view(num_rows, num_columns)
    return AttentionMetadata(
        query_start=torch.arange(num_rows + 1, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=table.to(torch.int32),
        positions=torch.tensor(seq_lens) - 1,
        num_rows=num_rows,
        num_decode_rows=num_rows,
        max_query_len=1,
        max_seq_len=max(seq_lens),
        block_size=block_size,
        seq_lens_host=seq_lens,
        query_lens_host=[1] * num_rows,
    )


@pytest.mark.parametrize("block_size", [16, 64])
@pytest.mark.parametrize("window", [None, 1, 33, 64, 5000])
def test_buckets_change_no_result(window: int | None, block_size: int) -> None:
    torch.manual_seed(0)
    seq_lens = [700, 350, 340, 90, 64, 17, 16, 1]
    metadata = decode_metadata(seq_lens, block_size)
    caches = torch.randn(2, 1 + len(seq_lens) * 44, NUM_KV_HEADS, block_size, 8)
    q = torch.randn(len(seq_lens), 6, 8)
    prepared = prepare_attention(metadata, num_q_heads=6, num_kv_heads=NUM_KV_HEADS, window=window)
    assert prepared.decode_plan is not None
    together = paged_attention(q, caches[0], caches[1], prepared, scale=0.3, window=window)
    for row, seq_len in enumerate(seq_lens):
        alone = replace(
            decode_metadata([seq_len], block_size), block_table=metadata.block_table[row : row + 1]
        )
        expected = paged_attention(
            q[row : row + 1], caches[0], caches[1], alone, scale=0.3, window=window
        )
        torch.testing.assert_close(together[row : row + 1], expected, rtol=1e-5, atol=1e-6)
