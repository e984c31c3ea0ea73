"""A decoder's pass over few tokens in six kernels a layer instead of eleven.

The norms, the gate and the residual sums are part of the products (`octavo_kernels.linear_ops`).
The weights are the decoder's own; what the layers compute is the same up to rounding.
"""

import torch

from octavo_engine.cuda.fusable import (
    FusedBlock,
    fusable_blocks,
    gates_by_rows,
    multiply,
    multiply_one,
    row_norm,
)
from octavo_engine.cuda.fused_pass import FusedPass
from octavo_engine.cuda.fused_shares import SharedFusedDecoder
from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.layers.norm import RMSNorm
from octavo_engine.models.decoder import Decoder
from octavo_kernels.linear_ops import (
    MAX_SKINNY_TOKENS,
    ONE_TOKEN_PART,
    ROW_TILE,
    NormInput,
    NormOutput,
)


class FusedDecoder(FusedPass):
    """Of one GPU; made by `fuse`."""

    def __init__(self, decoder: Decoder, blocks: list[FusedBlock]) -> None:
        super().__init__(decoder, blocks)
        self._num_parts = decoder.config.hidden_size // ROW_TILE
        # One for the norm before the attention, one for that before the feed-forward network.
        self._squares = torch.zeros(2, self._num_parts, MAX_SKINNY_TOKENS, device=self._device)
        parts_of_one = decoder.config.hidden_size // ONE_TOKEN_PART
        self._squares_of_one = torch.zeros(parts_of_one, MAX_SKINNY_TOKENS, device=self._device)

    def hidden_states_into(
        self,
        out: torch.Tensor,
        token_ids: torch.Tensor,
        context: StepContext,
        caches: list[LayerCache],
    ) -> None:
        embed = self._decoder.vocabulary.embed_with_norm
        if len(token_ids) == 1 and self._takes_single_rows:
            residual, _ = embed(token_ids, None)
            residual = self._residual_of_one(residual, context, caches)
        else:
            residual, x = embed(token_ids, row_norm(self._blocks[0].before_attention))
            assert x is not None
            residual = self._residual(residual, x, context, caches)
        self._decoder.norm.into(out, residual)

    def _residual(
        self,
        residual: torch.Tensor,
        x: torch.Tensor,
        context: StepContext,
        caches: list[LayerCache],
    ) -> torch.Tensor:
        """From the embedding and its norm to what the last norm takes."""
        norm: NormInput | None = None
        following = [block.before_attention for block in self._blocks[1:]] + [self._decoder.norm]
        for parts, cache, next_norm in zip(self._blocks, caches, following, strict=True):
            qkv = multiply(parts.qkv, x, self._arrivals, norm=norm, overlaps=True)
            attended = parts.block.attention.attend(qkv, context, cache)
            add = self._prepare(residual, parts.before_mlp, 0)
            residual = multiply(parts.output, attended, self._arrivals, add=add, overlaps=True)
            norm = NormInput(self._squares[0], self._num_parts, parts.before_mlp.eps)
            inner = multiply(parts.gate_up, add.scaled, self._arrivals, gated=True, norm=norm)
            add = self._prepare(residual, next_norm, 1)
            residual = multiply(parts.down, inner, self._arrivals, add=add, overlaps=True)
            x = add.scaled
            norm = NormInput(self._squares[1], self._num_parts, next_norm.eps)
        return residual

    def _residual_of_one(
        self, residual: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        """One token needs no preparation for most norms: each program reads all of it."""
        for parts, cache in zip(self._blocks, caches, strict=True):
            norm = row_norm(parts.before_attention)
            qkv = multiply_one(parts.qkv, residual, norm=norm)
            attended = parts.block.attention.attend(qkv, context, cache)
            residual, inner = self._gate_of_one(parts, residual, attended)
            residual = multiply_one(parts.down, inner, residual=residual)
        return residual

    def _gate_of_one(
        self, parts: FusedBlock, residual: torch.Tensor, attended: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(residual after the attention, what `down` takes)."""
        next_norm = parts.before_mlp
        if gates_by_rows(parts.gate_up):
            residual = multiply_one(parts.output, attended, residual=residual)
            inner = multiply_one(parts.gate_up, residual, gated=True, norm=row_norm(next_norm))
            return residual, inner
        scaled, squares = torch.empty_like(residual), self._squares_of_one
        add = NormOutput(residual, next_norm.weight, next_norm.weight_offset, scaled, squares)
        residual = multiply_one(parts.output, attended, add=add)
        norm = NormInput(squares, len(squares), next_norm.eps)
        return residual, multiply(parts.gate_up, scaled, self._arrivals, gated=True, norm=norm)

    def _prepare(self, residual: torch.Tensor, norm: RMSNorm, which: int) -> NormOutput:
        scaled = torch.empty_like(residual)
        return NormOutput(residual, norm.weight, norm.weight_offset, scaled, self._squares[which])


def fuse(decoder: Decoder) -> FusedPass | None:
    """None where the layers are of other kinds than `fusable_blocks` takes."""
    blocks = fusable_blocks(decoder)
    if blocks is None:
        return None
    if decoder.num_ranks > 1:
        return SharedFusedDecoder(decoder, blocks)
    return FusedDecoder(decoder, blocks)
