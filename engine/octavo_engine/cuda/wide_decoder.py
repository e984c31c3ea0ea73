"""A decoder's layers over many tokens in six kernels each instead of eight.

The norms and the residual sums are part of the products (`octavo_kernels.wide_ops`), as in
`fused_decoder` for few tokens. The last layer, which computes but the tokens that are wanted, is
the decoder's own. What the layers compute is the same up to rounding.
"""

from dataclasses import dataclass

import torch

from octavo_engine.layers.attention import Attention
from octavo_engine.layers.context import LayerCache, StepContext
from octavo_engine.layers.linear import DenseLinear, LinearLayer
from octavo_engine.layers.mlp import GatedMLP
from octavo_engine.layers.norm import RMSNorm
from octavo_engine.models.decoder import Block, Decoder
from octavo_kernels.linear_ops import NormInput, NormOutput
from octavo_kernels.wide_ops import WIDE_TILE, can_be_wide, wide_gated_linear, wide_linear

MIN_WIDE_TOKENS = 1024
"""Fewer leave too many of a GPU's cores without a tile."""


def takes_wide(num_tokens: int) -> bool:
    """Whether a step of so many tokens goes through the wide layers. Above some number always: the
    largest step, which is measured at start-up, is the one that needs most memory."""
    return num_tokens >= MIN_WIDE_TOKENS


@dataclass(frozen=True)
class _WideBlock:
    """A block's parts, known to be of the kinds that the wide products take."""

    attention: Attention
    before_attention: RMSNorm
    before_mlp: RMSNorm
    qkv: torch.Tensor
    output: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class WideLayers:
    """All layers of a decoder but its last. Made by `widen`."""

    def __init__(self, blocks: list[_WideBlock], activation: str) -> None:
        self._blocks = blocks
        self._activation = activation

    def takes(self, num_tokens: int) -> bool:
        return takes_wide(num_tokens)

    def __call__(
        self, x: torch.Tensor, context: StepContext, caches: list[LayerCache]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedding [T, hidden_size] -> (what the last of these layers adds, the sum before
        it), as a `Block` takes them. caches: of these layers."""
        residual, normed, norm = x, self._blocks[0].before_attention(x), None
        following = [block.before_attention for block in self._blocks[1:]]
        for parts, cache, next_norm in zip(self._blocks, caches, [*following, None], strict=True):
            qkv = wide_linear(normed, parts.qkv, norm=norm)
            attended = parts.attention.attend(qkv, context, cache)
            add = _prepare(residual, parts.before_mlp)
            residual = wide_linear(attended, parts.output, add=add)
            norm = _norm_of(add, parts.before_mlp)
            inner = wide_gated_linear(
                add.scaled, parts.gate_up, activation=self._activation, norm=norm
            )
            if next_norm is None:
                return wide_linear(inner, parts.down), residual
            add = _prepare(residual, next_norm)
            residual = wide_linear(inner, parts.down, add=add)
            normed, norm = add.scaled, _norm_of(add, next_norm)
        raise AssertionError("there is a layer")


def widen(decoder: Decoder) -> WideLayers | None:
    """None where the layers are of other kinds: norms elsewhere than before the sublayers, biases,
    weights that are not of 16 bits in whole tiles; or where ranks have shares of them."""
    if decoder.num_ranks > 1 or decoder.config.residual_scale != 1.0:
        return None
    blocks = [_wide(block) for block in decoder.blocks[:-1]]
    found = [block for block in blocks if block is not None]
    if not found or len(found) != len(blocks):
        return None
    return WideLayers(found, decoder.config.activation)


def _prepare(residual: torch.Tensor, norm: RMSNorm) -> NormOutput:
    num_tokens, width = residual.shape
    squares = torch.empty(
        width // WIDE_TILE, num_tokens, dtype=torch.float32, device=residual.device
    )
    scaled = torch.empty_like(residual)
    return NormOutput(residual, norm.weight, norm.weight_offset, scaled, squares)


def _norm_of(add: NormOutput, norm: RMSNorm) -> NormInput:
    return NormInput(add.squares, len(add.squares), norm.eps)


def _wide(block: Block) -> _WideBlock | None:
    if block.after_attention is not None or block.after_mlp is not None:
        return None
    if block.before_attention is None or block.before_mlp is None:
        return None
    if not isinstance(block.mlp, GatedMLP):
        return None
    qkv, output = _weight(block.attention.qkv), _weight(block.attention.output)
    gate_up, down = _weight(block.mlp.gate_up, gated=True), _weight(block.mlp.down)
    if qkv is None or output is None or gate_up is None or down is None:
        return None
    return _WideBlock(
        block.attention, block.before_attention, block.before_mlp, qkv, output, gate_up, down
    )


def _weight(layer: LinearLayer, *, gated: bool = False) -> torch.Tensor | None:
    if not isinstance(layer, DenseLinear) or not layer.is_plain or layer.bias is not None:
        return None
    return layer.weight if can_be_wide(layer.weight, gated=gated) else None
