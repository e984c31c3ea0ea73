"""Where a captured step with prompts finds the tokens that its last layer computes.

Room for a number of rows that goes with the graph, a place for each row of the request table at
most; surplus ones are empty rows of the first token, whose results nobody reads.
"""

import torch

from octavo_engine.cuda.decode import Shapes
from octavo_engine.layers.context import WantedTokens
from octavo_engine.model_config import last_group_idx


class WantedRows:
    def __init__(
        self, shapes: Shapes, *, max_num_rows: int, num_columns: int, device: torch.device
    ) -> None:
        self._shapes = shapes
        self._group_idx = last_group_idx(shapes.groups)
        self._tokens = torch.zeros(max_num_rows, dtype=torch.int64, device=device)
        self._seq_lens = torch.zeros(max_num_rows, dtype=torch.int32, device=device)
        self._block_table = torch.zeros(max_num_rows, num_columns, dtype=torch.int32, device=device)
        self._query_start = torch.arange(max_num_rows + 1, dtype=torch.int32, device=device)

    def stage_padding(self) -> None:
        self._tokens.zero_()
        self._seq_lens.zero_()

    def stage(self, wanted: WantedTokens) -> None:
        """For the next run of a graph that has room for them."""
        num_rows = len(wanted.tokens)
        # What an earlier step has left may be beyond this one's tokens.
        self._tokens[num_rows:].zero_()
        self._seq_lens[num_rows:].zero_()
        if wanted.attention is None:
            return
        table = wanted.attention.block_table
        self._tokens[:num_rows].copy_(wanted.tokens)
        self._seq_lens[:num_rows].copy_(wanted.attention.seq_lens)
        self._block_table[:num_rows, : table.shape[1]].copy_(table)

    def planned(self, num_rows: int) -> WantedTokens:
        """What is staged, as a graph with room for num_rows reads it; launches their plan."""
        tokens = self._tokens[:num_rows]
        attention = self._shapes.plan_decodes(
            self._group_idx,
            query_start=self._query_start[: num_rows + 1],
            seq_lens=self._seq_lens[:num_rows],
            block_table=self._block_table[:num_rows],
            # Of a row with one query nobody asks where it stands: at the end.
            positions=tokens,
        )
        return WantedTokens(tokens, attention)
