"""What the fused passes of one GPU and of a rank share: the decoder's parts, scratch memory.

Knows no order of kernels.
"""

from abc import ABC, abstractmethod

import torch

from octavo_engine.cuda.fusable import FusedBlock, max_fused_tokens, take_single_rows
from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.models.decoder import Decoder
from octavo_kernels.linear_ops import MAX_TILES


class FusedPass(ABC):
    """Takes up to `max_tokens` tokens, one pass at a time."""

    def __init__(self, decoder: Decoder, blocks: list[FusedBlock]) -> None:
        self._decoder = decoder
        self._blocks = blocks
        self._device = decoder.vocabulary.embedding.device
        self._arrivals = torch.zeros(MAX_TILES, dtype=torch.int32, device=self._device)
        self._takes_single_rows = take_single_rows(blocks)
        self.max_tokens = max_fused_tokens(blocks)

    @abstractmethod
    def hidden_states_into(
        self,
        out: torch.Tensor,
        token_ids: torch.Tensor,
        context: StepContext,
        caches: list[LayerCache],
    ) -> None:
        """`Decoder.hidden_states` into out."""
