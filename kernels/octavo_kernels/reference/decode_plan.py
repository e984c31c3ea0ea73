"""Which pages the decode rows of a step read on a CPU: made once a step for a KV group's layers.

Rows of like length share a bucket, so that short rows do not copy as many pages as the longest.
"""

from dataclasses import dataclass, replace

import torch

from octavo_kernels.metadata import AttentionMetadata

SMALL_NUM_BLOCKS = 4
"""Rows of up to so many pages are alike: another bucket would cost more than the pages saved."""


@dataclass(frozen=True)
class DecodeBucket:
    """Rows [first_row, last_row) of the step, padded to the same number of pages."""

    first_row: int
    last_row: int
    page_heads: torch.Tensor
    """[rows * heads * pages] int64: page p of head h is row p * num_heads + h of the cache."""
    visible: torch.Tensor
    """[rows, 1, 1, pages * block_size] bool."""


def with_plan(
    metadata: AttentionMetadata, *, num_kv_heads: int, window: int | None
) -> AttentionMetadata:
    plan = plan_decode(metadata, num_kv_heads=num_kv_heads, window=window)
    return replace(metadata, decode_plan=plan)


def plan_decode(
    metadata: AttentionMetadata, *, num_kv_heads: int, window: int | None
) -> tuple[DecodeBucket, ...]:
    """Best when the decode rows come sorted by length."""
    seq_lens = metadata.seq_lens_host[: metadata.num_decode_rows]
    visible_lens = [seq_len if window is None else min(seq_len, window) for seq_len in seq_lens]
    num_blocks = [-(-visible_len // metadata.block_size) for visible_len in visible_lens]
    return tuple(
        _bucket(metadata, first, last, num_kv_heads, window)
        for first, last in bucket_bounds(num_blocks)
    )


def bucket_bounds(num_blocks: list[int]) -> list[tuple[int, int]]:
    """Cuts rows, in their order, into runs whose page counts differ by at most a factor of two."""
    bounds: list[tuple[int, int]] = []
    first, smallest, largest = 0, 0, 0
    for row, blocks in enumerate(num_blocks):
        blocks = max(blocks, SMALL_NUM_BLOCKS)
        smallest = blocks if row == first else min(smallest, blocks)
        largest = blocks if row == first else max(largest, blocks)
        if largest > 2 * smallest:
            bounds.append((first, row))
            first, smallest, largest = row, blocks, blocks
    if num_blocks:
        bounds.append((first, len(num_blocks)))
    return bounds


def _bucket(
    metadata: AttentionMetadata, first: int, last: int, num_kv_heads: int, window: int | None
) -> DecodeBucket:
    block_size = metadata.block_size
    seq_lens = metadata.seq_lens[first:last].long()
    max_len = max(1, *metadata.seq_lens_host[first:last])
    table = metadata.block_table[first:last].long()
    if window is None or window >= max_len:
        blocks = table[:, : -(-max_len // block_size)]
        first_positions = torch.zeros_like(seq_lens)
    else:
        # The pages that can hold a visible key, from the page of the oldest one on.
        num_blocks = min(-(-window // block_size) + 1, table.shape[1])
        first_blocks = (seq_lens - window).clamp(min=0) // block_size
        block_idx = first_blocks[:, None] + torch.arange(num_blocks, device=table.device)
        blocks = table.gather(1, block_idx.clamp(max=table.shape[1] - 1))
        first_positions = first_blocks * block_size
    positions = first_positions[:, None] + torch.arange(
        blocks.shape[1] * block_size, device=table.device
    )
    visible = positions < seq_lens[:, None]
    if window is not None:
        visible &= positions >= seq_lens[:, None] - window
    return DecodeBucket(
        first_row=first,
        last_row=last,
        page_heads=page_heads(blocks, num_kv_heads),
        visible=visible[:, None, None, :],
    )


def page_heads(blocks: torch.Tensor, num_heads: int) -> torch.Tensor:
    """blocks[N, B] -> [N * num_heads * B]: each page of each head, heads of a row together."""
    heads = torch.arange(num_heads, device=blocks.device)
    return (blocks[:, None, :] * num_heads + heads[None, :, None]).reshape(-1)
