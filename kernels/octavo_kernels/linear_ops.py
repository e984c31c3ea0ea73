"""Products of a few tokens with a large matrix, and what a decoder fuses around them.

A decoder's running sum goes from product to product in two forms: the residual, and the residual
times the next norm's weight. The factor 1 / root mean square is one number a token; it is applied
to the next product's result, from sums of squares that the product before has left.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch.nn import functional

from octavo_kernels.ops import gelu_tanh_mul, rms_norm, silu_mul

ACTIVATIONS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "silu": silu_mul,
    "gelu_tanh": gelu_tanh_mul,
}
"""Of a product's [T, 2I] -> [T, I]."""
MAX_SKINNY_TOKENS = 64
ROW_TILE = 64
"""Rows of a weight in a program; sums of squares are left for each such tile."""
ONE_TOKEN_PART = 4
"""The same where one token is multiplied by rows of packed words."""
MAX_TILES = 4096


@dataclass(frozen=True)
class NormInput:
    """x holds residual * gamma: the product's result is divided by the residual's rms."""

    squares: torch.Tensor
    """[>= num_parts, MAX_SKINNY_TOKENS] float32: partial sums of the residual's squares."""
    num_parts: int
    eps: float


@dataclass(frozen=True)
class NormOutput:
    """The product's result is added to the residual and prepared for the norm that follows."""

    residual: torch.Tensor
    """[T, N]."""
    gamma: torch.Tensor
    """[N]: weight of the norm that follows."""
    gamma_offset: float
    scaled: torch.Tensor
    """[T, N], filled: new residual * (gamma + gamma_offset)."""
    squares: torch.Tensor
    """[N / ROW_TILE, MAX_SKINNY_TOKENS] float32, filled: sums of the new residual's squares."""


@dataclass(frozen=True)
class RowNorm:
    """x is normalised before the product, as by `rms_norm`."""

    gamma: torch.Tensor
    """[K]."""
    gamma_offset: float
    eps: float


MAX_SINGLE_ROW_WIDTH = 16384
"""A weight's row must fit in a program's registers."""
MAX_SPLIT_TOKENS = 256
"""More fill the GPU with whole products."""
NUM_PARTS = 2
MIN_SPLIT_WIDTH = 4096
"""Shorter parts cost more in sums than they gain."""
MIN_PENDING_TOKENS = 2049
"""From here on a residual that the product adds to saves more traffic than its reading costs."""
MAX_VOCABULARY_TOKENS = 128
"""More are cuBLAS's."""
MIN_VOCABULARY_ROWS = 32000
"""Fewer rows of a rank's share of a vocabulary are cuBLAS's."""


def single_row_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    norm: RowNorm | None = None,
    residual: torch.Tensor | None = None,
    overlaps: bool = False,
) -> torch.Tensor:
    """x[1, K] @ weight[N, K].T + bias -> [1, N], for 16-bit weights of any N.

    gated: weight is [2N, K], gate above up; the result is silu(gate) * up. residual [1, N] is
    added to the result. overlaps: the weight is read while the kernel in front still runs.
    """
    if x.shape != (1, weight.shape[1]) or x.shape[1] > MAX_SINGLE_ROW_WIDTH:
        raise ValueError(
            f"single_row_linear cannot multiply {tuple(x.shape)} by {tuple(weight.shape)}"
        )
    if x.is_cpu:
        from octavo_kernels.reference.skinny_linear import single_row_linear as reference

        return reference(x, weight, bias, gated=gated, norm=norm, residual=residual)
    from octavo_kernels.gpu.single_row import single_row_linear as run

    return run(x, weight, bias, gated=gated, norm=norm, residual=residual, overlaps=overlaps)


def can_be_skinny(weight: torch.Tensor, *, gated: bool) -> bool:
    """Whether `skinny_linear` takes this weight [N, K], 16-bit, of whole tiles."""
    num_rows, width = weight.shape
    tile = 2 * ROW_TILE if gated else ROW_TILE
    return (
        weight.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
        and num_rows % tile == 0
        and num_rows // ROW_TILE <= MAX_TILES
        and width % 128 == 0
    )


def skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    gated: bool = False,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
    arrivals: torch.Tensor,
    overlaps: bool = False,
) -> torch.Tensor:
    """x[T, K] @ weight[N, K].T + bias -> [T, N], T <= MAX_SKINNY_TOKENS.

    gated: weight is [2N, K], gate above up; the result is silu(gate) * up.
    norm: see `NormInput`. add: the result is the new residual, see `NormOutput`.
    arrivals[MAX_TILES] int32, zero before and after.
    overlaps: where it pays, the weight is read while the kernel in front still runs.
    """
    if not 1 <= x.shape[0] <= MAX_SKINNY_TOKENS:
        raise ValueError(f"skinny_linear takes 1 to {MAX_SKINNY_TOKENS} tokens, got {x.shape[0]}")
    if not can_be_skinny(weight, gated=gated) or x.shape[1] != weight.shape[1]:
        raise ValueError(f"skinny_linear cannot multiply {tuple(x.shape)} by {weight.shape}")
    if x.is_cpu:
        from octavo_kernels.reference.skinny_linear import skinny_linear as reference

        return reference(x, weight, bias, gated=gated, norm=norm, add=add)
    if overlaps and not gated:
        from octavo_kernels.gpu import hopper_skinny
        from octavo_kernels.gpu.launch import num_cores

        cores = num_cores(x.device)
        num_rows, width = weight.shape
        if hopper_skinny.can_run(x, weight) and hopper_skinny.pays(len(x), num_rows, width, cores):
            return hopper_skinny.hopper_skinny_linear(
                x, weight, bias, norm=norm, add=add, arrivals=arrivals, num_cores=cores
            )
    from octavo_kernels.gpu.skinny_linear import skinny_linear as run

    return run(x, weight, bias, gated=gated, norm=norm, add=add, arrivals=arrivals)


def gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    activation: str,
) -> torch.Tensor:
    """act(x @ gate.T) * (x @ up.T) of x[T, K] and weight[2I, K], gate above up -> [T, I].

    activation: of ACTIVATIONS. Both products are rounded to x's dtype before it.
    """
    if bias is None and x.is_cuda:
        from octavo_kernels.gpu import hopper_gated
        from octavo_kernels.gpu.launch import num_cores

        num_rows = weight.shape[0] // 2
        if hopper_gated.can_run(x, weight) and hopper_gated.pays(
            x.shape[0], num_rows, num_cores(x.device)
        ):
            return hopper_gated.hopper_gated_linear(x, weight, gelu=activation == "gelu_tanh")
    return ACTIVATIONS[activation](functional.linear(x, weight, bias))


@dataclass(frozen=True)
class PendingProduct:
    """x[T, K] @ weight[N, K].T, yet to be computed."""

    x: torch.Tensor
    weight: torch.Tensor

    def add_to(self, residual: torch.Tensor) -> torch.Tensor:
        """residual[T, N] with the product added in place, rounded once."""
        return residual.addmm_(self.x, self.weight.t())


ForNorm = torch.Tensor | PendingProduct
"""What a product leaves to the sum with the residual and its norm, see `linear_for_norm`."""


def linear_for_norm(x: torch.Tensor, weight: torch.Tensor) -> ForNorm:
    """x[T, K] @ weight[N, K].T: [T, N] or, where that is faster, its parts [NUM_PARTS, T, N] in
    float32 for `add_parts_rms_norm`, or the product as one that can be added to the residual."""
    if not x.is_cuda:
        return functional.linear(x, weight)
    from octavo_kernels.gpu.launch import num_cores

    if len(x) >= MIN_PENDING_TOKENS:
        return PendingProduct(x, weight)
    num_rows, width = weight.shape
    if pays_to_split(len(x), num_rows, width, num_cores(x.device)):
        return split_linear(x, weight)
    return functional.linear(x, weight)


def pays_to_split(num_tokens: int, num_rows: int, width: int, num_cores: int) -> bool:
    """Of a product of [num_tokens, width] by [num_rows, width], the sum's norm behind it.

    Where tiles of 128 by 128 leave half of the cores without work cuBLAS splits the inputs as well,
    but adds the parts up by a kernel of its own. Four parts gained less than two.
    """
    num_tiles = -(-num_tokens // 128) * -(-num_rows // 128)
    return (
        MAX_SKINNY_TOKENS < num_tokens <= MAX_SPLIT_TOKENS
        and NUM_PARTS * num_tiles <= num_cores
        and width % (64 * NUM_PARTS) == 0
        and width >= NUM_PARTS * MIN_SPLIT_WIDTH
    )


def split_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x[T, K] @ weight[N, K].T in parts: [NUM_PARTS, T, N] float32, part i of the i-th share of the
    inputs."""
    num_tokens, width = x.shape
    inputs = x.view(num_tokens, NUM_PARTS, width // NUM_PARTS).transpose(0, 1)
    weights = weight.view(len(weight), NUM_PARTS, width // NUM_PARTS).permute(1, 2, 0)
    if x.is_cpu or x.dtype == torch.float32:
        return torch.bmm(inputs.float(), weights.float())
    return torch.bmm(inputs, weights, out_dtype=torch.float32)


def add_parts_rms_norm(
    parts: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    *,
    weight_offset: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """parts[P, T, H] float32 and residual[T, H] -> (norm of their sum, their sum), as `rms_norm`
    with a residual; the sum is rounded once."""
    if parts.is_cpu:
        total = (parts.sum(dim=0) + residual.float()).to(residual.dtype)
        return rms_norm(total, weight, eps, weight_offset=weight_offset), total
    from octavo_kernels.gpu.rms_norm import add_parts_rms_norm as run

    return run(parts, residual, weight, eps, weight_offset=weight_offset)


def vocabulary_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x[T, K] @ weight[N, K].T -> [T, N] for any T, made for a weight of very many rows."""
    if _has_vocabulary_kernel(x, weight):
        if x.shape[0] == 1:
            return single_row_linear(x, weight)
        from octavo_kernels.gpu.skinny_linear import vocabulary_linear as run

        return run(x, weight)
    return functional.linear(x, weight)


def _has_vocabulary_kernel(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Where Hopper's copy engine can feed it: elsewhere nothing was measured."""
    if not x.is_cuda or not 1 <= x.shape[0] <= MAX_VOCABULARY_TOKENS:
        return False
    from octavo_kernels.gpu.launch import capability

    num_rows, width = weight.shape
    return (
        capability(x.device)[0] == 9
        and weight.dtype in (torch.bfloat16, torch.float16)
        and weight.is_contiguous()
        and x.is_contiguous()
        and num_rows >= MIN_VOCABULARY_ROWS
        and width % 128 == 0
        and width <= MAX_SINGLE_ROW_WIDTH
    )


def embed_rows(
    token_ids: torch.Tensor, embedding: torch.Tensor, scale: float, norm: RowNorm | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """(embedding[token_ids[T]] * scale [T, K], its norm if one is asked for)."""
    if token_ids.is_cpu:
        from octavo_kernels.reference.skinny_linear import embed_rows as run
    else:
        from octavo_kernels.gpu.embed import embed_rows as run
    return run(token_ids, embedding, scale, norm)
