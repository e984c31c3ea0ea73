"""What a captured step with prompts reads: the step itself, and padding that touches nothing."""

from dataclasses import replace
from typing import Any, cast

import pytest
import torch

from octavo_engine.batch import KVGroup
from octavo_engine.cuda.decode import Shapes
from octavo_engine.cuda.mixed import SIZES, MixedForward, num_tiles
from octavo_engine.layers.context import GroupStep, WantedTokens
from octavo_engine.memory_facts import LARGEST_GRAPH_TOKENS
from octavo_engine.runner.inputs import StepInputs
from octavo_kernels import AttentionMetadata
from octavo_kernels.gpu.schedule import AttentionSchedule

CPU = torch.device("cpu")
MAX_ROWS, COLUMNS = 5, 4


class _Recorded:
    """Stands in for the captured function: notes the sizes it is run with."""

    def __init__(self) -> None:
        self.is_captured = True
        self.runs: list[int] = []

    def size_for(self, num_rows: int) -> int:
        return min(size for size in SIZES if size >= num_rows)

    def run(self, size: int) -> None:
        self.runs.append(size)


def _made(max_num_rows: int) -> MixedForward:
    shapes = Shapes(
        groups=(KVGroup((0,), None),), num_q_heads=2, num_kv_heads=1, block_size=16,
        max_model_len=64,
    )  # fmt: skip
    unused: Any = None
    made = MixedForward(
        unused, [], unused, shapes, max_num_rows=max_num_rows, num_columns=COLUMNS, hidden_size=8,
        dtype=torch.float32, device=CPU,
    )  # fmt: skip
    made.stage_padding()
    made.captured = cast(Any, _Recorded())
    return made


@pytest.fixture
def mixed() -> MixedForward:
    return _made(MAX_ROWS)


def _inputs(num_decodes: int, prompt_lens: list[int]) -> StepInputs:
    """Decode rows at length 7, then prompts; every number in it is positive."""
    num_rows, num_tokens = num_decodes + len(prompt_lens), num_decodes + sum(prompt_lens)
    tiles, token = [], num_decodes
    for idx, length in enumerate(prompt_lens):
        tiles.append((token, length, 0, num_decodes + idx))
        token += length
    lens = [7] * num_decodes + prompt_lens
    positions = torch.arange(1, num_tokens + 1)
    attention = AttentionMetadata(
        query_start=torch.zeros(num_rows + 1, dtype=torch.int32),
        seq_lens=torch.tensor(lens, dtype=torch.int32),
        block_table=torch.full((num_rows, 2), 9, dtype=torch.int32),
        positions=positions,
        num_rows=num_rows,
        num_decode_rows=num_decodes,
        max_query_len=max(lens),
        max_seq_len=max(lens),
        block_size=16,
        seq_lens_host=lens,
        query_lens_host=[1] * num_decodes + prompt_lens,
        schedule=AttentionSchedule(
            window=None,
            decode=None,
            tiles=torch.tensor(tiles, dtype=torch.int32) if tiles else None,
        ),
    )
    return StepInputs(
        work=[],
        rows=torch.zeros(num_rows, dtype=torch.int64),
        token_ids=torch.arange(100, 100 + num_tokens, dtype=torch.int32),
        positions=positions,
        token_rows=torch.zeros(num_tokens, dtype=torch.int64),
        groups=(GroupStep(attention, torch.arange(num_tokens) + 32),),
        sampling=[],
        sampling_tokens=torch.zeros(0, dtype=torch.int64),
        wanted=_wanted(lens, [1] * num_decodes + prompt_lens),
    )


def _wanted(seq_lens: list[int], query_lens: list[int]) -> WantedTokens:
    """The last token of each row."""
    num_rows = len(seq_lens)
    attention = AttentionMetadata(
        query_start=torch.arange(num_rows + 1, dtype=torch.int32),
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        block_table=torch.full((num_rows, 2), 8, dtype=torch.int32),
        positions=torch.zeros(num_rows, dtype=torch.int64),
        num_rows=num_rows,
        num_decode_rows=num_rows,
        max_query_len=1,
        max_seq_len=max(seq_lens),
        block_size=16,
        seq_lens_host=seq_lens,
        query_lens_host=[1] * num_rows,
    )
    return WantedTokens(torch.tensor(query_lens).cumsum(0) - 1, attention)


def test_the_last_token_of_a_graph_is_padding(mixed: MixedForward) -> None:
    inputs = _inputs(2, [62])  # exactly the smallest size
    assert mixed.can_run(inputs)
    mixed.run(inputs)
    assert cast(Any, mixed.captured).runs == [128]


def test_a_shorter_step_leaves_nothing_of_a_longer_one(mixed: MixedForward) -> None:
    mixed.run(_inputs(3, [30, 20]))
    mixed.run(_inputs(1, [6]))
    assert mixed._seq_lens.tolist() == [7, 0, 0, 0, 0, 0]
    assert mixed._groups[0].slots[:64].tolist() == list(range(32, 39)) + [-1] * 57
    assert mixed._positions[7:64].count_nonzero() == 0
    surplus = mixed._tiles[1 : num_tiles(64)].tolist()
    assert surplus == [[63, 1, 0, MAX_ROWS]] * len(surplus), "one query of the last token"


def test_the_padding_tiles_row_reads_the_null_page_alone(mixed: MixedForward) -> None:
    mixed.run(_inputs(2, [10, 10]))
    assert mixed._groups[0].block_table[:4, :2].unique().tolist() == [9]
    assert mixed._groups[0].block_table[MAX_ROWS].count_nonzero() == 0


def test_the_step_comes_through_unchanged(mixed: MixedForward) -> None:
    inputs = _inputs(3, [40])
    mixed.run(inputs)
    num_tokens = len(inputs.token_ids)
    assert torch.equal(mixed._token_ids[:num_tokens], inputs.token_ids)
    assert torch.equal(mixed._positions[:num_tokens], inputs.positions)
    assert mixed._tiles[0].tolist() == [3, 40, 0, 3]


@pytest.mark.parametrize(
    ("num_decodes", "prompt_lens"),
    [(3, []), (0, [LARGEST_GRAPH_TOKENS]), (0, [1] * 40)],
    ids=["no prompt", "too many tokens", "too many prompts"],
)
def test_other_steps_run_eagerly(
    mixed: MixedForward, num_decodes: int, prompt_lens: list[int]
) -> None:
    assert not mixed.can_run(_inputs(num_decodes, prompt_lens))


def test_nothing_runs_before_the_capture(mixed: MixedForward) -> None:
    cast(Any, mixed.captured).is_captured = False
    assert not mixed.can_run(_inputs(1, [5]))


def test_tiles_always_have_a_query(mixed: MixedForward) -> None:
    assert (mixed._tiles[:, 1] > 0).all(), "Hopper's kernel would wait for keys for ever"


def test_the_last_layer_reads_the_rows_that_sample_and_empty_ones(mixed: MixedForward) -> None:
    mixed.run(_inputs(4, [30]))
    hidden = mixed.run(_inputs(1, [20]))
    wanted = mixed._wanted.planned(MAX_ROWS)
    assert wanted.attention is not None
    assert len(hidden) == 2
    assert wanted.tokens.tolist() == [0, 20, 0, 0, 0], "none of the longer step's"
    assert wanted.attention.seq_lens.tolist() == [7, 20, 0, 0, 0]
    assert wanted.attention.block_table[:2, :2].unique().tolist() == [8]


def test_a_step_that_samples_nothing_leaves_no_row_of_another(mixed: MixedForward) -> None:
    mixed.run(_inputs(2, [30]))
    nothing = WantedTokens(torch.zeros(0, dtype=torch.int64), None)
    assert len(mixed.run(replace(_inputs(0, [20]), wanted=nothing))) == 0
    wanted = mixed._wanted.planned(MAX_ROWS)
    assert wanted.attention is not None
    assert wanted.attention.seq_lens.count_nonzero() == 0


def test_a_step_whose_tokens_are_all_wanted_has_a_graph_where_these_are_no_more_than_rows() -> None:
    whole = replace(_inputs(1, [50]), wanted=None)
    assert not _made(63).can_run(whole)
    mixed = _made(64)
    assert mixed.can_run(whole)
    assert len(mixed.run(whole)) == 51


def test_a_small_graph_computes_all_tokens_and_gives_the_wanted_ones() -> None:
    mixed = _made(64)
    inputs = _inputs(2, [30])
    mixed._hidden[:, 0] = torch.arange(64)
    assert mixed.run(inputs)[:, 0].tolist() == [0, 1, 31]
