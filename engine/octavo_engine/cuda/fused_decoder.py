"""A decoder's pass over few tokens in six kernels a layer instead of eleven.

The norms, the gate and the residual sums are part of the products (`octavo_kernels.linear_ops`).
The weights are the decoder's own; what the layers compute is the same up to rounding.
"""

from dataclasses import dataclass

import torch

from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.layers.linear import DenseLinear, LinearLayer
from octavo_engine.layers.mlp import GatedMLP
from octavo_engine.layers.norm import RMSNorm
from octavo_engine.models.decoder import Block, Decoder
from octavo_engine.quantization.products import PackedLinear
from octavo_kernels.linear_ops import (
    MAX_SINGLE_ROW_WIDTH,
    MAX_SKINNY_TOKENS,
    MAX_TILES,
    ROW_TILE,
    NormInput,
    NormOutput,
    RowNorm,
    can_be_skinny,
    single_row_linear,
    skinny_linear,
)
from octavo_kernels.quant_ops import fused_packed_linear

MIN_GATE_TILES = 100
"""Below, the gated product leaves most of the GPU's cores without a tile: cuBLAS is faster."""


Fusable = DenseLinear | PackedLinear


@dataclass(frozen=True)
class _FusedBlock:
    """A block's parts, known to be of the kinds that fuse."""

    block: Block
    before_attention: RMSNorm
    before_mlp: RMSNorm
    qkv: Fusable
    output: Fusable
    gate_up: Fusable
    down: Fusable

    @property
    def products(self) -> tuple[Fusable, ...]:
        return self.qkv, self.output, self.gate_up, self.down


class FusedDecoder:
    """Made by `fuse`. Takes up to `max_tokens` tokens, one pass at a time."""

    def __init__(self, decoder: Decoder, blocks: list[_FusedBlock]) -> None:
        self._decoder = decoder
        self._blocks = blocks
        device = decoder.vocabulary.embedding.device
        self._arrivals = torch.zeros(MAX_TILES, dtype=torch.int32, device=device)
        self._num_parts = decoder.config.hidden_size // ROW_TILE
        products = [product for block in blocks for product in block.products]
        self._is_dense = all(isinstance(product, DenseLinear) for product in products)
        packed = [product for product in products if isinstance(product, PackedLinear)]
        self.max_tokens = min(
            [product.max_fused_tokens for product in packed] or [MAX_SKINNY_TOKENS]
        )
        # One for the norm before the attention, one for that before the feed-forward network.
        self._squares = torch.zeros(2, self._num_parts, MAX_SKINNY_TOKENS, device=device)

    def hidden_states(
        self, token_ids: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        """As `Decoder.hidden_states`."""
        residual = self._decoder.embed(token_ids)
        if len(token_ids) == 1 and self._is_dense:
            return self._hidden_state_of_one(residual, context, caches)
        x = self._blocks[0].before_attention(residual)
        norm: NormInput | None = None
        following = [block.before_attention for block in self._blocks[1:]] + [self._decoder.norm]
        for parts, cache, next_norm in zip(self._blocks, caches, following, strict=True):
            qkv = self._multiply(parts.qkv, x, norm=norm)
            attended = parts.block.attention.attend(qkv, context, cache)
            add = self._prepare(residual, parts.before_mlp, 0)
            residual = self._multiply(parts.output, attended, add=add)
            norm = NormInput(self._squares[0], self._num_parts, parts.before_mlp.eps)
            inner = self._multiply(parts.gate_up, add.scaled, gated=True, norm=norm)
            add = self._prepare(residual, next_norm, 1)
            residual = self._multiply(parts.down, inner, add=add)
            x = add.scaled
            norm = NormInput(self._squares[1], self._num_parts, next_norm.eps)
        return self._decoder.norm(residual)

    def _hidden_state_of_one(
        self, residual: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> torch.Tensor:
        """One token needs no preparation for the next norm: each program reads all of it."""
        for parts, cache in zip(self._blocks, caches, strict=True):
            qkv, output, gate_up, down = (_dense(product) for product in parts.products)
            norm = _row_norm(parts.before_attention)
            projected = single_row_linear(residual, qkv.weight, qkv.bias, norm=norm)
            attended = parts.block.attention.attend(projected, context, cache)
            residual = single_row_linear(attended, output.weight, output.bias, residual=residual)
            norm = _row_norm(parts.before_mlp)
            inner = single_row_linear(residual, gate_up.weight, gate_up.bias, gated=True, norm=norm)
            residual = single_row_linear(inner, down.weight, down.bias, residual=residual)
        return self._decoder.norm(residual)

    def _prepare(self, residual: torch.Tensor, norm: RMSNorm, which: int) -> NormOutput:
        scaled = torch.empty_like(residual)
        return NormOutput(residual, norm.weight, norm.weight_offset, scaled, self._squares[which])

    def _multiply(
        self,
        layer: Fusable,
        x: torch.Tensor,
        *,
        gated: bool = False,
        norm: NormInput | None = None,
        add: NormOutput | None = None,
    ) -> torch.Tensor:
        if isinstance(layer, PackedLinear):
            weight = layer.fusable_weight(gated=gated)
            assert weight is not None
            return fused_packed_linear(x, weight, layer.bias, gated=gated, norm=norm, add=add)
        return skinny_linear(
            x, layer.weight, layer.bias, gated=gated, norm=norm, add=add, arrivals=self._arrivals
        )


def _row_norm(norm: RMSNorm) -> RowNorm:
    return RowNorm(norm.weight, norm.weight_offset, norm.eps)


def fuse(decoder: Decoder) -> FusedDecoder | None:
    """None where some layer is not of the plain kind: norms before the sublayers alone, SiLU gates,
    16-bit weights in whole tiles, or packed ones as Hopper's kernel takes them. Ranks must sum what
    the products make before it is added to the residual."""
    config = decoder.config
    if decoder.num_ranks > 1:
        return None
    if config.activation != "silu" or config.residual_scale != 1.0:
        return None
    blocks = [_fusable(block) for block in decoder.blocks]
    found = [block for block in blocks if block is not None]
    return FusedDecoder(decoder, found) if len(found) == len(blocks) else None


def _fusable(block: Block) -> _FusedBlock | None:
    norms = (block.before_attention, block.before_mlp)
    if block.after_attention is not None or block.after_mlp is not None:
        return None
    if norms[0] is None or norms[1] is None or not isinstance(block.mlp, GatedMLP):
        return None
    qkv = _skinny(block.attention.qkv)
    output = _skinny(block.attention.output)
    gate_up = _skinny(block.mlp.gate_up, gated=True)
    down = _skinny(block.mlp.down)
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return _FusedBlock(block, norms[0], norms[1], qkv, output, gate_up, down)


def _dense(product: Fusable) -> DenseLinear:
    assert isinstance(product, DenseLinear)
    return product


def _skinny(layer: LinearLayer, *, gated: bool = False) -> Fusable | None:
    if isinstance(layer, PackedLinear):
        return None if layer.fusable_weight(gated=gated) is None else layer
    if not isinstance(layer, DenseLinear) or not layer.is_plain:
        return None
    if not can_be_skinny(layer.weight, gated=gated):
        return None
    if layer.weight.shape[1] > MAX_SINGLE_ROW_WIDTH:
        return None
    if gated and layer.weight.shape[0] // (2 * ROW_TILE) < MIN_GATE_TILES:
        return None
    return layer
