"""A step's first rows: each token's of the embedding, with the first norm of the model."""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous
from octavo_kernels.linear_ops import RowNorm


@triton.jit
def _embed_kernel(
    token_ids,
    embedding,
    gamma,
    out,
    normed,
    scale,
    eps,
    gamma_offset,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    HAS_NORM: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program a token."""
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    if HAS_NORM:
        weight = tl.load(gamma + column, mask=inside, other=0.0).to(tl.float32) + gamma_offset
    wait_for_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    source = tl.load(token_ids + token).to(tl.int64) * WIDTH + column
    row = tl.load(embedding + source, mask=inside, other=0.0).to(tl.float32) * scale
    row = row.to(out.dtype.element_ty)
    tl.store(out + token * WIDTH + column, row, mask=inside)
    if HAS_NORM:
        wide = row.to(tl.float32)
        factor = tl.rsqrt(tl.sum(wide * wide, 0) / WIDTH + eps)
        result = wide * factor * weight
        tl.store(normed + token * WIDTH + column, result.to(normed.dtype.element_ty), mask=inside)


def embed_rows(
    token_ids: torch.Tensor, embedding: torch.Tensor, scale: float, norm: RowNorm | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """As `linear_ops.embed_rows`."""
    num_tokens, width = token_ids.shape[0], embedding.shape[1]
    out = torch.empty(num_tokens, width, dtype=embedding.dtype, device=embedding.device)
    normed = None if norm is None else torch.empty_like(out)
    block = triton.next_power_of_2(width)
    _embed_kernel[(num_tokens,)](
        token_ids,
        embedding,
        out if norm is None else norm.gamma,
        out,
        out if normed is None else normed,
        scale,
        0.0 if norm is None else norm.eps,
        0.0 if norm is None else norm.gamma_offset,
        WIDTH=width,
        BLOCK=block,
        HAS_NORM=norm is not None,
        # As rms_norm has, so that both add up in the same order.
        num_warps=min(16, max(4, block // 1024)),
        **overlap_options(embedding.device),
    )
    return out, normed
