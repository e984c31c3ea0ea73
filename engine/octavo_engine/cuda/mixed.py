"""Steps with prompts in them as captured graphs: launched one by one their kernels cost the host
more time than the GPU needs for a few hundred tokens.

A graph has a fixed number of tokens, of decode rows and of tiles of prompt queries; a step is
padded up to the next graph. Padding tokens write no page; surplus decode rows are empty, and
prompts overwrite what these leave; a surplus tile is one query at the last token, which is always
padding. Inputs are made by `inputs` as for an eager step and copied to where the graph reads them.

The last layer of a graph of more tokens than rows can sample has room for all rows; with fewer
tokens it computes them all.
"""

import dataclasses
from dataclasses import dataclass

import torch

from octavo_engine.cuda.decode import Shapes
from octavo_engine.cuda.graphs import CapturedFunction
from octavo_engine.cuda.rehearsal import Rehearsal
from octavo_engine.cuda.wanted_rows import WantedRows
from octavo_engine.layers.context import GroupStep, LayerCache, StepContext
from octavo_engine.memory_facts import LARGEST_GRAPH_TOKENS
from octavo_engine.models.protocol import Model
from octavo_engine.runner.inputs import StepInputs
from octavo_engine.runner.rope_tables import RopeTables
from octavo_kernels.metadata import PREFILL_TILE

SIZES = [64, *range(128, 513, 64), *range(640, 1025, 128), 1280, 1536, 1792, LARGEST_GRAPH_TOKENS]
SURPLUS_TILES = 16
"""Tiles beyond those of one long prompt: as many short prompts fit in a step."""


def num_tiles(num_tokens: int) -> int:
    return -(-num_tokens // PREFILL_TILE) + SURPLUS_TILES


def wanted_sizes(max_num_rows: int) -> list[int]:
    """Numbers of tokens up to max_num_rows that some capture has multiplied by every weight."""
    return [size for size in SIZES if size < max_num_rows] + [max_num_rows]


@dataclass(frozen=True)
class _Group:
    """What the layers of one KV group read."""

    slots: torch.Tensor
    block_table: torch.Tensor


class MixedForward:
    def __init__(
        self,
        model: Model,
        caches: list[LayerCache],
        ropes: RopeTables,
        shapes: Shapes,
        *,
        max_num_rows: int,
        num_columns: int,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        rehearsal: Rehearsal | None = None,
    ) -> None:
        self._model = model
        self._caches = caches
        self._rehearsal = rehearsal
        self._ropes = ropes
        self._shapes = shapes
        self._max_num_rows = max_num_rows

        def zeros(dtype: torch.dtype, *shape: int) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._token_ids = zeros(torch.int32, LARGEST_GRAPH_TOKENS)
        self._positions = zeros(torch.int64, LARGEST_GRAPH_TOKENS)
        self._seq_lens = zeros(torch.int32, max_num_rows + 1)
        self._query_start = torch.arange(max_num_rows + 2, dtype=torch.int32, device=device)
        self._tiles = zeros(torch.int32, num_tiles(LARGEST_GRAPH_TOKENS), 4)
        # The row after the last is the padding tiles' own: its page is the null page.
        self._groups = [
            _Group(
                zeros(torch.int64, LARGEST_GRAPH_TOKENS) - 1,
                zeros(torch.int32, max_num_rows + 1, num_columns),
            )
            for _ in shapes.groups
        ]
        self._padding_tiles = {
            size: torch.tensor([size - 1, 1, 0, max_num_rows], dtype=torch.int32, device=device)
            for size in SIZES
        }
        self._wanted = WantedRows(
            shapes, max_num_rows=max_num_rows, num_columns=num_columns, device=device
        )
        self._hidden = zeros(dtype, max_num_rows, hidden_size)
        self.captured = CapturedFunction(
            self._run, SIZES, lambda size: self._rehearse(size, self._room(size))
        )

    def stage_padding(self) -> None:
        """Afterwards a run touches no page but the null page."""
        for group in self._groups:
            group.slots.fill_(-1)
        self._seq_lens.zero_()
        self._token_ids.zero_()
        self._positions.zero_()
        self._wanted.stage_padding()
        # A tile must have a query: the Hopper kernel's warps would wait for keys for ever.
        self._tiles[:] = self._padding_tiles[SIZES[0]]

    def can_run(self, inputs: StepInputs) -> bool:
        """Whether the step is captured and fits some graph."""
        num_tokens = len(inputs.token_ids)
        tiles = _tiles(inputs)
        if not self.captured.is_captured or tiles is None or num_tokens >= LARGEST_GRAPH_TOKENS:
            return False
        size = self.captured.size_for(num_tokens + 1)
        if inputs.wanted is None and self._room(size) is not None:
            return False
        return len(tiles) <= num_tiles(size)

    def _room(self, size: int) -> int | None:
        """For how many wanted tokens a graph of this size computes its last layer; None: for all
        of its tokens."""
        return self._max_num_rows if size > self._max_num_rows else None

    def run(self, inputs: StepInputs) -> torch.Tensor:
        """The hidden states of the wanted tokens of a step that `can_run` has let in; overwritten
        by the next."""
        num_tokens, wanted = len(inputs.token_ids), inputs.wanted
        size = self.captured.size_for(num_tokens + 1)
        self._stage(inputs, size)
        if wanted is not None and self._room(size) is not None:
            self._wanted.stage(wanted)
            self.captured.run(size)
            return self._hidden[: len(wanted.tokens)]
        self.captured.run(size)
        hidden = self._hidden[:num_tokens]
        return hidden if wanted is None else hidden[wanted.tokens]

    def _stage(self, inputs: StepInputs, size: int) -> None:
        num_tokens, attention = len(inputs.token_ids), inputs.groups[0].attention
        self._token_ids[:num_tokens].copy_(inputs.token_ids)
        self._positions[:num_tokens].copy_(inputs.positions)
        self._positions[num_tokens:size].zero_()
        num_decodes = attention.num_decode_rows
        self._seq_lens[:num_decodes].copy_(attention.seq_lens[:num_decodes])
        self._seq_lens[num_decodes:].zero_()
        for target, group in zip(self._groups, inputs.groups, strict=True):
            target.slots[:num_tokens].copy_(group.slots)
            target.slots[num_tokens:size].fill_(-1)
            table = group.attention.block_table
            target.block_table[: table.shape[0], : table.shape[1]].copy_(table)
        tiles = _tiles(inputs)
        assert tiles is not None
        self._tiles[: len(tiles)].copy_(tiles)
        self._tiles[len(tiles) : num_tiles(size)] = self._padding_tiles[size]

    def _run(self, size: int) -> None:
        """Captured: everything it reads was staged."""
        hidden = self._compute(size, self._room(size), self._model, self._caches)
        self._hidden[: len(hidden)].copy_(hidden)

    def rehearse_last_layer(self, num_rows: int) -> None:
        """Launches what the last layer of an eager step does for so many wanted tokens."""
        self._rehearse(SIZES[0], num_rows)

    def _rehearse(self, size: int, room: int | None) -> None:
        model, caches = self._model, self._caches
        if self._rehearsal is not None:
            model, caches = self._rehearsal.model, self._rehearsal.caches(caches)
        self._compute(size, room, model, caches)

    def _compute(
        self, size: int, room: int | None, model: Model, caches: list[LayerCache]
    ) -> torch.Tensor:
        """The hidden states of so many wanted tokens as there is room for, see `_room`."""
        groups = tuple(self._group_step(idx, size) for idx in range(len(self._groups)))
        wanted = None if room is None else self._wanted.planned(room)
        ropes = self._ropes.step(self._positions[:size], None)
        return model.hidden_states(
            self._token_ids[:size], StepContext(groups, ropes, wanted), caches
        )

    def _group_step(self, group_idx: int, size: int) -> GroupStep:
        group, shapes = self._groups[group_idx], self._shapes
        # Every token may be a decode row's.
        num_decodes = min(size, self._max_num_rows)
        prepared = shapes.plan_decodes(
            group_idx,
            query_start=self._query_start[: num_decodes + 1],
            seq_lens=self._seq_lens[:num_decodes],
            block_table=group.block_table,
            positions=self._positions[:size],
        )
        assert prepared.schedule is not None
        tiles = self._tiles[: num_tiles(size)]
        schedule = dataclasses.replace(prepared.schedule, tiles=tiles)
        attention = dataclasses.replace(prepared, schedule=schedule)
        return GroupStep(attention=attention, slots=group.slots[:size])


def _tiles(inputs: StepInputs) -> torch.Tensor | None:
    """[num_tiles, 4]: the same for all groups; None where no prompt works."""
    schedule = inputs.groups[0].attention.schedule
    return None if schedule is None else schedule.tiles
