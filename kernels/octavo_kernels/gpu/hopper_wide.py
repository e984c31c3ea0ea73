"""x @ weight.T of many tokens on Hopper, in Gluon, with a decoder's norms and sums around it.

A norm before the product is one factor a token at its end. Behind it, the result is added to the
residual, which leaves in two forms: as it is, and times the weight of the norm that follows; sums
of its squares are left for each tile of rows. The residual is read while the product runs.
`wide_rows` after any product does the same on any chip; tests hold the two together.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo_kernels.gpu.hopper_tiles import (
    BLOCK_K,
    BLOCK_M,
    CONSUMER_REGISTERS,
    GROUP,
    MEAN_REGISTERS,
    NUM_WARPS,
    PRODUCER_REGISTERS,
    allocate,
    load_squares,
    multiply,
    next_residual,
    num_stages,
    place,
    produce,
    scale_by_rms,
    wait_for_previous,
)
from octavo_kernels.gpu.launch import capability, num_cores
from octavo_kernels.linear_ops import NormInput, NormOutput
from octavo_kernels.wide_ops import WIDE_TILE


@gluon.jit
def _halves(tile):
    """The left and the right half of [64, columns]."""
    return tile.reshape([64, 2, tile.shape[1] // 2]).permute(0, 2, 1).split()


@gluon.jit
def _slabs(tile, BLOCK_N: gl.constexpr):
    """[64, BLOCK_N] as neighbours of 64 columns."""
    if BLOCK_N == 64:
        return (tile,)
    elif BLOCK_N == 128:
        return _halves(tile)
    else:
        left, right = _halves(tile)
        return _halves(left) + _halves(right)


@gluon.jit
def _load_slabs(numbers, BLOCK_N: gl.constexpr):
    """numbers: pointers [64] to the first slab's."""
    if BLOCK_N == 64:
        return (gl.load(numbers),)
    elif BLOCK_N == 128:
        return gl.load(numbers), gl.load(numbers + 64)
    else:
        return (gl.load(numbers), gl.load(numbers + 64), gl.load(numbers + 128),
                gl.load(numbers + 192))  # fmt: skip


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, out, scaled, gamma, squares_in, squares_out, x_s, w_s, full, free,
    num_tokens, num_m, num_parts, stride_in, stride_out, eps, gamma_offset,
    N: gl.constexpr, K: gl.constexpr, BLOCK_N: gl.constexpr, HAS_NORM: gl.constexpr,
    PARTS: gl.constexpr, ADDS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    narrow: gl.constexpr = out.dtype.element_ty
    step = 0
    wait_for_previous(OVERLAP)
    for item in range(gl.program_id(0), num_m * (N // BLOCK_N), gl.num_programs(0)):
        m, n = place(item, num_m, N // BLOCK_N, GROUP)
        first_token = m * 128 + CONSUMER * 64
        column = n * BLOCK_N + gl.arange(0, 64, gl.SliceLayout(0, layout))
        # Asked for here, the product hides their way from memory.
        if ADDS:
            gammas = _load_slabs(gamma + column, BLOCK_N)
        if HAS_NORM:
            sums = load_squares(squares_in, stride_in, num_parts, first_token, num_tokens, PARTS)
        acc, step = multiply(CONSUMER, x_s, w_s, full, free, step, K, BLOCK_N, STAGES)
        if HAS_NORM:
            acc = scale_by_rms(acc, sums, eps, K, BLOCK_N)
        slabs = _slabs(acc.to(narrow), BLOCK_N)
        token = first_token + gl.arange(0, 64, gl.SliceLayout(1, layout))
        at = token.to(gl.int64)[:, None] * N + column[None, :]
        inside = token < num_tokens
        squares = gl.zeros([64, 64], gl.float32, layout)
        for idx in gl.static_range(BLOCK_N // 64):
            tile = gl.convert_layout(slabs[idx], layout)
            if ADDS:
                added, step = next_residual(CONSUMER, x_s, full, free, step, layout, STAGES)
                tile = (tile.to(gl.float32) + added.to(gl.float32)).to(narrow)
                wide = tile.to(gl.float32)
                scale = gammas[idx].to(gl.float32) + gamma_offset
                prepared = (wide * scale[None, :]).to(narrow)
                gl.store(scaled + at + idx * 64, prepared, mask=inside[:, None])
                squares += wide * wide
            gl.store(out + at + idx * 64, tile, mask=inside[:, None])
        if ADDS:
            target = squares_out + n * stride_out + token
            gl.store(target, gl.sum(squares, 1), mask=inside)


@gluon.jit(do_not_specialize=["num_tokens", "num_m", "num_parts", "stride_in", "stride_out"])
def _hopper_wide_kernel(
    x_desc, w_desc, residual_desc, out, scaled, gamma, squares_in, squares_out, num_tokens, num_m,
    num_parts, stride_in, stride_out, eps, gamma_offset,
    N: gl.constexpr, K: gl.constexpr, BLOCK_N: gl.constexpr, HAS_NORM: gl.constexpr,
    PARTS: gl.constexpr, ADDS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    x_s, w_s, full, free = allocate(x_desc.dtype, BLOCK_N, STAGES)
    gl.warp_specialize(
        [
            (_consumer, (0, out, scaled, gamma, squares_in, squares_out, x_s, w_s, full, free,
                         num_tokens, num_m, num_parts, stride_in, stride_out, eps, gamma_offset,
                         N, K, BLOCK_N, HAS_NORM, PARTS, ADDS, STAGES, GROUP, OVERLAP)),
            (_consumer, (1, out, scaled, gamma, squares_in, squares_out, x_s, w_s, full, free,
                         num_tokens, num_m, num_parts, stride_in, stride_out, eps, gamma_offset,
                         N, K, BLOCK_N, HAS_NORM, PARTS, ADDS, STAGES, GROUP, OVERLAP)),
            (produce, (x_desc, w_desc, residual_desc, x_s, w_s, full, free, num_m, N // BLOCK_N,
                       K, BLOCK_N, BLOCK_N // 2, BLOCK_N, ADDS, STAGES, GROUP, OVERLAP)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


def can_run(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this kernel covers the case: Hopper, 16 bits, whole tiles of the weight [N, K]."""
    return (
        x.is_cuda
        and capability(x.device)[0] == 9
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.is_contiguous()
        and weight.is_contiguous()
        and weight.shape[0] % WIDE_TILE == 0
        and weight.shape[1] % BLOCK_K.value == 0
    )


def hopper_wide_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    norm: NormInput | None,
    add: NormOutput | None,
    block_n: int = WIDE_TILE,
    overlaps: bool = False,
) -> torch.Tensor:
    """As `wide_ops.wide_linear`, for what `can_run` allows and at least one token.

    block_n: rows of the weight in a tile, 64, 128 or 256, and in a part of the squares that are
    left. overlaps: the launch before lets this one start early,
    which fetches its first rows of the weight meanwhile.
    """
    num_tokens, width = x.shape
    num_rows = weight.shape[0]
    stages = num_stages(block_n)
    assert not overlaps or width >= stages * BLOCK_K.value
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    num_m = triton.cdiv(num_tokens, BLOCK_M)
    x_desc = TensorDescriptor.from_tensor(x, [64, BLOCK_K.value], layout)
    _hopper_wide_kernel[(min(num_cores(x.device), num_m * (num_rows // block_n)),)](
        x_desc,
        TensorDescriptor.from_tensor(weight, [block_n // 2, BLOCK_K.value], layout),
        x_desc if add is None else TensorDescriptor.from_tensor(add.residual, [64, 64], layout),
        out,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if norm is None else norm.squares,
        out if add is None else add.squares,
        num_tokens,
        num_m,
        1 if norm is None else norm.num_parts,
        0 if norm is None else norm.squares.stride(0),
        0 if add is None else add.squares.stride(0),
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        N=num_rows,
        K=width,
        BLOCK_N=block_n,
        HAS_NORM=norm is not None,
        PARTS=2 if norm is None else max(2, triton.next_power_of_2(norm.num_parts)),
        ADDS=add is not None,
        STAGES=stages,
        GROUP=GROUP,
        OVERLAP=overlaps,
        num_warps=NUM_WARPS,
        maxnreg=MEAN_REGISTERS,
        **({"launch_pdl": True} if overlaps else {}),
    )
    return out
