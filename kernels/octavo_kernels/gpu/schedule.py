"""How one step's attention is cut into pieces of work, shared by all layers of a KV group.

Decode rows are cut on the GPU from their lengths, so a captured graph serves all lengths: the grid
has a fixed number of items, the plan says which row and keys each has, surplus items leave at once.
Prefill rows are cut on the host into tiles of queries, the tiles that read most keys first.
"""

import dataclasses
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import num_cores, overlap_options, wait_for_previous
from octavo_kernels.metadata import PREFILL_TILE, AttentionMetadata

ITEM_FIELDS = tl.constexpr(8)
"""row, first key, end of keys, pieces of the row, its first item, its first visible key, unused."""
PLAN_ALIGNMENT = 64
"""Pieces begin at multiples of this many keys: a multiple of every kernel's block of keys."""
SMALL_BATCH = 24
"""Rows up to which decode is split finely: one row is too little work for the GPU."""
MAX_PIECES = 128
"""Pieces that a row is cut into at most; the merge reads all their maxima at once."""


@dataclass(frozen=True)
class DecodePlan:
    items: torch.Tensor
    """[num_items, ITEM_FIELDS] int32."""
    arrivals: torch.Tensor
    """[rows, Hkv] int32: pieces that have finished; zero between launches."""


@dataclass(frozen=True)
class AttentionSchedule:
    window: int | None
    decode: DecodePlan | None
    tiles: torch.Tensor | None
    """[num_tiles, 4] int32: first token, queries, position of the first query, row."""


def with_schedule(
    metadata: AttentionMetadata, *, num_q_heads: int, num_kv_heads: int, window: int | None
) -> AttentionMetadata:
    """The same metadata with its schedule filled in; launches the plan on the current stream."""
    if num_q_heads % num_kv_heads:
        raise ValueError(f"{num_q_heads} query heads do not share {num_kv_heads} KV heads evenly")
    device = metadata.seq_lens.device
    decode = None
    if metadata.num_decode_rows:
        decode = plan_decode(
            metadata.seq_lens[: metadata.num_decode_rows],
            num_kv_heads=num_kv_heads,
            window=window,
            target_items=target_items(metadata.num_decode_rows, num_kv_heads, num_cores(device)),
        )
    tiles = cut_tiles(metadata)
    schedule = AttentionSchedule(
        window=window, decode=decode, tiles=_to_device(tiles, device) if tiles else None
    )
    return dataclasses.replace(metadata, schedule=schedule)


def target_items(num_rows: int, num_kv_heads: int, num_cores: int) -> int:
    """Items wanted beyond one a row, so that items times KV heads fill the GPU's cores.

    Measured on an H200 with 8 KV heads: one program a core is fastest for small batches, two above,
    less a sixteenth: else rows of equal length that nearly fill the GPU are cut, each into a long
    piece and a short one (32 rows of 8,192 keys 252 us instead of 247).
    """
    programs = num_cores if num_rows <= SMALL_BATCH else 2 * num_cores - num_cores // 8
    return max(1, min(programs // num_kv_heads, MAX_PIECES - 2))


def plan_decode(
    seq_lens: torch.Tensor, *, num_kv_heads: int, window: int | None, target_items: int
) -> DecodePlan:
    """seq_lens[rows] int32 -> the plan of at most rows + target_items pieces."""
    num_rows = seq_lens.shape[0]
    num_items = num_rows + target_items
    items = torch.empty(num_items, ITEM_FIELDS.value, dtype=torch.int32, device=seq_lens.device)
    arrivals = torch.empty(num_rows, num_kv_heads, dtype=torch.int32, device=seq_lens.device)
    _plan_kernel[(num_rows,)](
        seq_lens,
        items,
        arrivals,
        num_rows,
        target_items,
        PLAN_ALIGNMENT if num_rows <= SMALL_BATCH else 2 * PLAN_ALIGNMENT,
        # Larger than any sequence, small enough that its difference to one stays an int32.
        2**30 if window is None else window,
        ALIGNMENT=PLAN_ALIGNMENT,
        ROWS=triton.next_power_of_2(num_rows),
        HEADS=num_kv_heads,
        BLOCK_HEADS=triton.next_power_of_2(num_kv_heads),
        num_warps=1 if num_rows <= 128 else 4,
        **overlap_options(seq_lens.device),
    )
    return DecodePlan(items=items, arrivals=arrivals)


@triton.jit(do_not_specialize=["num_rows", "target_items", "min_chunk", "window"])
def _plan_kernel(
    seq_lens,
    items,
    arrivals,
    num_rows,
    target_items,
    min_chunk,
    window,
    ALIGNMENT: tl.constexpr,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program a row; each reads all lengths to know how many items the rows before it have."""
    row = tl.program_id(0)
    rows = tl.arange(0, ROWS)
    wait_for_previous(OVERLAP)
    head = tl.arange(0, BLOCK_HEADS)
    tl.store(arrivals + row * HEADS + head, head * 0, mask=head < HEADS)
    lens = tl.load(seq_lens + rows, mask=rows < num_rows, other=0)
    visible_from = tl.maximum(lens - window, 0)
    begins = visible_from // ALIGNMENT * ALIGNMENT
    spans = lens - begins
    chunk = tl.maximum((tl.sum(spans) + target_items - 1) // target_items, min_chunk)
    chunk = (chunk + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    pieces = tl.where(rows < num_rows, tl.maximum((spans + chunk - 1) // chunk, 1), 0)
    first_item = tl.sum(tl.where(rows < row, pieces, 0))
    is_mine = rows == row
    num_pieces = tl.sum(tl.where(is_mine, pieces, 0))
    begin = tl.sum(tl.where(is_mine, begins, 0))
    end = tl.sum(tl.where(is_mine, lens, 0))
    visible = tl.sum(tl.where(is_mine, visible_from, 0))
    # Equal pieces: the last would otherwise be a short one that a whole program is spent on.
    piece_len = (end - begin + num_pieces - 1) // num_pieces
    piece_len = (piece_len + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
    for start in range(0, num_pieces, 32):
        piece = start + tl.arange(0, 32)
        item = items + (first_item + piece) * ITEM_FIELDS
        inside = piece < num_pieces
        tl.store(item, row + piece * 0, mask=inside)
        tl.store(item + 1, tl.minimum(begin + piece * piece_len, end), mask=inside)
        tl.store(item + 2, tl.minimum(begin + (piece + 1) * piece_len, end), mask=inside)
        tl.store(item + 3, num_pieces + piece * 0, mask=inside)
        tl.store(item + 4, first_item + piece * 0, mask=inside)
        tl.store(item + 5, visible + piece * 0, mask=inside)
    if row == num_rows - 1:
        for start in range(first_item + num_pieces, num_rows + target_items, 32):
            item_idx = start + tl.arange(0, 32)
            inside = item_idx < num_rows + target_items
            tl.store(items + item_idx * ITEM_FIELDS + 3, item_idx * 0, mask=inside)


def cut_tiles(metadata: AttentionMetadata) -> list[tuple[int, int, int, int]]:
    """Tiles of the rows after the decode rows: (first token, queries, first position, row)."""
    tiles = []
    token = metadata.num_decode_rows
    for row in range(metadata.num_decode_rows, metadata.num_rows):
        query_len, seq_len = metadata.query_lens_host[row], metadata.seq_lens_host[row]
        for first in range(0, query_len, PREFILL_TILE):
            num_queries = min(PREFILL_TILE, query_len - first)
            tiles.append((token + first, num_queries, seq_len - query_len + first, row))
        token += query_len
    # The longest start first, so that no core is left alone with one at the end.
    return sorted(tiles, key=lambda tile: -(tile[1] + tile[2]))


def _to_device(tiles: list[tuple[int, int, int, int]], device: torch.device) -> torch.Tensor:
    host = torch.tensor(tiles, dtype=torch.int32)
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host
