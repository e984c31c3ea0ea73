"""The plan cuts every row into pieces that cover exactly its visible keys."""

import itertools

import pytest
import torch
from tests.kernels.attention_case import make_case

from octavo_kernels.gpu.schedule import (
    PLAN_ALIGNMENT,
    cut_tiles,
    plan_decode,
    target_items,
)
from octavo_kernels.metadata import PREFILL_TILE


@pytest.mark.parametrize(
    "seq_lens", [[1], [8192], [300, 17, 64, 2048], [5] * 33, [0, 100, 0], [100_000, 3], [64] * 17]
)
@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize("target", [1, 33])
def test_pieces_cover_the_visible_keys_once(
    seq_lens: list[int], window: int | None, target: int, device: torch.device
) -> None:
    lens = torch.tensor(seq_lens, dtype=torch.int32, device=device)
    plan = plan_decode(lens, num_kv_heads=2, window=window, target_items=target)
    assert plan.arrivals.eq(0).all()
    used = [item for item in plan.items.tolist() if item[3] > 0]
    assert [item[0] for item in used] == sorted(item[0] for item in used)
    for row, length in enumerate(seq_lens):
        visible_from = 0 if window is None else max(0, length - window)
        mine = [(idx, item) for idx, item in enumerate(used) if item[0] == row]
        assert {item[3] for _, item in mine} == {len(mine)}
        assert {item[4] for _, item in mine} == {mine[0][0]}
        assert {item[5] for _, item in mine} == {visible_from}
        assert mine[0][1][1] == visible_from // PLAN_ALIGNMENT * PLAN_ALIGNMENT
        assert mine[-1][1][2] == length
        for (_, before), (_, after) in itertools.pairwise(mine):
            assert before[2] == after[1]
        assert all(item[1] % PLAN_ALIGNMENT == 0 for _, item in mine if item[1] < length)


def test_a_long_row_is_cut_into_about_the_wanted_number_of_pieces(device: torch.device) -> None:
    lens = torch.tensor([64 * 640], dtype=torch.int32, device=device)
    plan = plan_decode(lens, num_kv_heads=8, window=None, target_items=16)
    assert plan.items[0, 3] == 16


def test_items_times_heads_fill_the_cores() -> None:
    assert target_items(1, 8, 132) == 16
    assert target_items(32, 8, 132) == 31  # two a core, less a sixteenth
    assert target_items(1, 1, 132) == 126
    assert target_items(1, 256, 132) == 1


def test_tiles_cover_every_query_once_longest_first(generator: torch.Generator) -> None:
    case = make_case(
        [1, 300, 128, 5], [40, 300, 1000, 5], num_decode_rows=1, num_q_heads=1, num_kv_heads=1,
        head_dim=16, block_size=16, dtype=torch.float32, generator=generator,
    )  # fmt: skip
    tiles = cut_tiles(case.metadata)
    covered = sorted(token + i for token, num, _, _ in tiles for i in range(num))
    assert covered == list(range(1, 434))
    for token, num, position, row in tiles:
        assert num <= PREFILL_TILE
        assert case.metadata.positions[token] == position
        assert case.metadata.query_start[row] <= token < case.metadata.query_start[row + 1]
    keys_read = [position + num for _, num, position, _ in tiles]
    assert keys_read == sorted(keys_read, reverse=True)
