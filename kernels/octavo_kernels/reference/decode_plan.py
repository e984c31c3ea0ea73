"""What the decode rows of a step read on a CPU: planned once a step for all layers of a KV group.

Rows of like length share a bucket, so that short rows do not copy as much as the longest.
"""

import functools
from dataclasses import dataclass, replace

import torch

from octavo_kernels.metadata import AttentionMetadata

PIECE_LEN = 16
"""Tokens copied at once, the smallest page: of a larger page only the pieces with visible keys."""
SMALL_NUM_PIECES = 8
"""Rows of up to so many pieces are alike: another bucket would cost more than the copies saved."""


@dataclass(frozen=True)
class DecodeBucket:
    """Rows [first_row, last_row) of the step, padded to the same number of pieces."""

    first_row: int
    last_row: int
    piece_rows: torch.Tensor
    """[rows * heads * pieces] int64: rows of the cache seen as [-1, PIECE_LEN * head_dim]."""
    visible: torch.Tensor
    """[rows, 1, 1, pieces * PIECE_LEN] bool."""


class DecodePlan:
    """Buckets of a step, made when the first layer asks: compiled kernels never do."""

    def __init__(
        self, metadata: AttentionMetadata, *, num_kv_heads: int, window: int | None
    ) -> None:
        self._metadata = metadata
        self._num_kv_heads = num_kv_heads
        self._window = window

    @functools.cached_property
    def buckets(self) -> tuple[DecodeBucket, ...]:
        return plan_decode(self._metadata, num_kv_heads=self._num_kv_heads, window=self._window)


def with_plan(
    metadata: AttentionMetadata, *, num_kv_heads: int, window: int | None
) -> AttentionMetadata:
    plan = DecodePlan(metadata, num_kv_heads=num_kv_heads, window=window)
    return replace(metadata, decode_plan=plan)


def plan_decode(
    metadata: AttentionMetadata, *, num_kv_heads: int, window: int | None
) -> tuple[DecodeBucket, ...]:
    """Best when the decode rows come sorted by length."""
    seq_lens = metadata.seq_lens_host[: metadata.num_decode_rows]
    visible_lens = [seq_len if window is None else min(seq_len, window) for seq_len in seq_lens]
    num_pieces = [-(-visible_len // PIECE_LEN) for visible_len in visible_lens]
    return tuple(
        _bucket(metadata, first, last, num_kv_heads, window)
        for first, last in bucket_bounds(num_pieces)
    )


def bucket_bounds(num_pieces: list[int]) -> list[tuple[int, int]]:
    """Cuts rows, in their order, into runs whose counts differ by at most a factor of two."""
    bounds: list[tuple[int, int]] = []
    first, smallest, largest = 0, 0, 0
    for row, pieces in enumerate(num_pieces):
        pieces = max(pieces, SMALL_NUM_PIECES)
        smallest = pieces if row == first else min(smallest, pieces)
        largest = pieces if row == first else max(largest, pieces)
        if largest > 2 * smallest:
            bounds.append((first, row))
            first, smallest, largest = row, pieces, pieces
    if num_pieces:
        bounds.append((first, len(num_pieces)))
    return bounds


def _bucket(
    metadata: AttentionMetadata, first: int, last: int, num_kv_heads: int, window: int | None
) -> DecodeBucket:
    seq_lens = metadata.seq_lens[first:last].long()
    max_len = max(1, *metadata.seq_lens_host[first:last])
    first_pieces = torch.zeros_like(seq_lens)
    num_pieces = -(-max_len // PIECE_LEN)
    if window is not None and window < max_len:
        # From the piece of the oldest visible key on.
        first_pieces = (seq_lens - window).clamp(min=0) // PIECE_LEN
        num_pieces = min(-(-window // PIECE_LEN) + 1, num_pieces)
    pieces = first_pieces[:, None] + torch.arange(num_pieces, device=seq_lens.device)
    offsets = torch.arange(num_pieces * PIECE_LEN, device=seq_lens.device)
    positions = first_pieces[:, None] * PIECE_LEN + offsets
    visible = positions < seq_lens[:, None]
    if window is not None:
        visible &= positions >= seq_lens[:, None] - window
    return DecodeBucket(
        first_row=first,
        last_row=last,
        piece_rows=_piece_rows(metadata, slice(first, last), pieces, num_kv_heads),
        visible=visible[:, None, None, :],
    )


def _piece_rows(
    metadata: AttentionMetadata, rows: slice, pieces: torch.Tensor, num_heads: int
) -> torch.Tensor:
    """pieces[N, P] of each row -> [N * num_heads * P]: pieces of a row's head side by side."""
    per_block = metadata.block_size // PIECE_LEN
    table = metadata.block_table[rows].long()
    blocks = table.gather(1, (pieces // per_block).clamp(max=table.shape[1] - 1))
    heads = torch.arange(num_heads, device=table.device)
    page_heads = blocks[:, None, :] * num_heads + heads[None, :, None]
    return (page_heads * per_block + (pieces % per_block)[:, None, :]).reshape(-1)
