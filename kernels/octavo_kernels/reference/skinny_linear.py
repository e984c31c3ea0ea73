"""A product with norm, gate and residual around it, step by step."""

from typing import TYPE_CHECKING

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from octavo_kernels.linear_ops import NormInput, NormOutput, RowNorm


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: "NormInput | None",
    add: "NormOutput | None",
) -> torch.Tensor:
    num_tokens, width = x.shape
    result = x.float() @ weight.float().T
    if norm is not None:
        mean_square = norm.squares[: norm.num_parts, :num_tokens].sum(dim=0) / width
        result *= torch.rsqrt(mean_square + norm.eps)[:, None]
    if bias is not None:
        result += bias.float()
    if gated:
        gate, up = result.to(x.dtype).float().chunk(2, dim=-1)
        result = functional.silu(gate) * up
    result = result.to(x.dtype)
    if add is None:
        return result
    total = (result.float() + add.residual.float()).to(x.dtype)
    add.scaled.copy_(total.float() * (add.gamma.float() + add.gamma_offset))
    tiles = total.float().square().view(num_tokens, -1, 64).sum(dim=-1)
    add.squares[: tiles.shape[1], :num_tokens] = tiles.T
    return total


def single_row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    gated: bool,
    norm: "RowNorm | None",
    residual: torch.Tensor | None,
) -> torch.Tensor:
    token = x.float()
    if norm is not None:
        token = token * torch.rsqrt(token.square().mean(dim=-1, keepdim=True) + norm.eps)
        token = token * (norm.gamma.float() + norm.gamma_offset)
    result = token @ weight.float().T
    if bias is not None:
        result += bias.float()
    if gated:
        gate, up = result.to(x.dtype).float().chunk(2, dim=-1)
        result = functional.silu(gate) * up
    if residual is not None:
        result = result.to(x.dtype).float() + residual.float()
    return result.to(x.dtype)


def embed_rows(
    token_ids: torch.Tensor, embedding: torch.Tensor, scale: float, norm: "RowNorm | None"
) -> tuple[torch.Tensor, torch.Tensor | None]:
    rows = functional.embedding(token_ids, embedding)
    if scale != 1.0:
        rows = rows * scale
    if norm is None:
        return rows, None
    wide = rows.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + norm.eps)
    return rows, (wide * (norm.gamma.float() + norm.gamma_offset)).to(rows.dtype)
