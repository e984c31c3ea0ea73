"""The parts of a decoder's blocks that few tokens can go through by fused products.

Knows kinds of layers; which kernels follow each other is `fused_decoder`'s and `fused_shares`'
affair.
"""

from dataclasses import dataclass

import torch

from octavo_engine.layers.linear import DenseLinear, LinearLayer
from octavo_engine.layers.mlp import GatedMLP
from octavo_engine.layers.norm import RMSNorm
from octavo_engine.models.decoder import Block, Decoder
from octavo_engine.quantization.products import PackedLinear
from octavo_kernels.linear_ops import (
    MAX_SINGLE_ROW_WIDTH,
    MAX_SKINNY_TOKENS,
    ROW_TILE,
    NormInput,
    NormOutput,
    RowNorm,
    can_be_skinny,
    single_row_linear,
    skinny_linear,
)
from octavo_kernels.quant_ops import fused_packed_linear, single_row_packed_linear

MIN_GATE_TILES = 100
"""Below, the gated product leaves most of the GPU's cores without a tile: cuBLAS is faster."""


Fusable = DenseLinear | PackedLinear


@dataclass(frozen=True)
class FusedBlock:
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


def fusable_blocks(decoder: Decoder) -> list[FusedBlock] | None:
    """None where some layer is not of the plain kind: norms before the sublayers alone, SiLU gates,
    16-bit weights in whole tiles, or packed ones as Hopper's kernel takes them."""
    config = decoder.config
    if config.activation != "silu" or config.residual_scale != 1.0:
        return None
    blocks = [_fusable(block) for block in decoder.blocks]
    found = [block for block in blocks if block is not None]
    return found if len(found) == len(blocks) else None


def max_fused_tokens(blocks: list[FusedBlock]) -> int:
    products = [product for block in blocks for product in block.products]
    packed = [product for product in products if isinstance(product, PackedLinear)]
    return min([product.max_fused_tokens for product in packed] or [MAX_SKINNY_TOKENS])


def take_single_rows(blocks: list[FusedBlock]) -> bool:
    """Whether `multiply_one` takes all products."""
    return all(
        isinstance(product, DenseLinear) or product.single_row_weight() is not None
        for block in blocks
        for product in block.products
    )


def gates_by_rows(gate_up: Fusable) -> bool:
    """Whether the gated product of one token goes row by row as well. Of 4 bits, the matrix unit
    is faster, and the product before it prepares the norm between them; row by row each program
    norms for itself. A step of Llama-3.1-8B on an H200: int4 2.19 ms against 2.71, fp8 2.61
    against 2.78."""
    if not isinstance(gate_up, PackedLinear):
        return True
    weight = gate_up.single_row_weight()
    return weight is None or weight.kind != "int4"


def multiply(
    layer: Fusable,
    x: torch.Tensor,
    arrivals: torch.Tensor,
    *,
    gated: bool = False,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
    overlaps: bool = False,
) -> torch.Tensor:
    """arrivals, overlaps: as of `skinny_linear`; packed weights choose by themselves."""
    if isinstance(layer, PackedLinear):
        weight = layer.fusable_weight(gated=gated)
        assert weight is not None
        return fused_packed_linear(x, weight, layer.bias, gated=gated, norm=norm, add=add)
    return skinny_linear(
        x,
        layer.weight,
        layer.bias,
        gated=gated,
        norm=norm,
        add=add,
        arrivals=arrivals,
        overlaps=overlaps,
    )


def multiply_one(
    layer: Fusable,
    x: torch.Tensor,
    *,
    gated: bool = False,
    norm: RowNorm | None = None,
    residual: torch.Tensor | None = None,
    add: NormOutput | None = None,
    overlaps: bool = False,
) -> torch.Tensor:
    """As `single_row_linear`; overlaps: of 16-bit weights. add: of packed ones."""
    if isinstance(layer, PackedLinear):
        weight = layer.single_row_weight()
        assert weight is not None
        return single_row_packed_linear(
            x, weight, layer.bias, gated=gated, norm=norm, residual=residual, add=add
        )
    assert add is None
    return single_row_linear(
        x, layer.weight, layer.bias, gated=gated, norm=norm, residual=residual, overlaps=overlaps
    )


def _fusable(block: Block) -> FusedBlock | None:
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
    return FusedBlock(block, norms[0], norms[1], qkv, output, gate_up, down)


def row_norm(norm: RMSNorm) -> RowNorm:
    return RowNorm(norm.weight, norm.weight_offset, norm.eps)


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
