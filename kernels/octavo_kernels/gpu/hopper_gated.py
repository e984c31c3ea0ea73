"""act(x @ gate.T) * (x @ up.T) of many tokens on Hopper, in Gluon: one product with its activation.

Persistent programs: a producer warp copies tiles of tokens and of both halves of the weight by TMA,
two consumer warpgroups multiply 64 tokens each by 128 rows of the gate and the same 128 of what it
gates, so that no pair leaves the registers of its thread. The product of both halves never goes to
memory. `gated_mul` after any product does the same on any chip; tests hold the two together.
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
    num_stages,
    place,
    produce,
    scale_by_rms,
    wait_for_previous,
)
from octavo_kernels.gpu.launch import capability, num_cores
from octavo_kernels.linear_ops import NormInput

ROWS = gl.constexpr(128)
"""Rows of either half of the weight in a tile."""
MIN_TOKENS = 65
FEW_TOKENS = 256
MIN_FILL_OF_FEW = 0.8
MIN_ROUNDS = 6


@gluon.jit
def _activated(gate, GELU: gl.constexpr):
    """As `gated_mul` has it."""
    z = gate
    if GELU:
        z = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    small = gl.exp(-gl.abs(z))
    return gate * (gl.where(z >= 0, 1.0, small) / (1.0 + small))


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, out, squares, x_s, w_s, full, free, num_tokens, num_m, num_parts,
    squares_stride, eps,
    N: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, GELU: gl.constexpr,
    HAS_NORM: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // ROWS, ROWS // 8], [4, 1], [1, 0])
    narrow: gl.constexpr = out.dtype.element_ty
    step = 0
    wait_for_previous(OVERLAP)
    for item in range(gl.program_id(0), num_m * (N // ROWS), gl.num_programs(0)):
        m, n = place(item, num_m, N // ROWS, GROUP)
        first_token = m * 128 + CONSUMER * 64
        if HAS_NORM:
            # Asked for here, the product hides their way from memory.
            sums = load_squares(squares, squares_stride, num_parts, first_token, num_tokens, PARTS)
        acc, step = multiply(CONSUMER, x_s, w_s, full, free, step, K, 2 * ROWS, STAGES)
        if HAS_NORM:
            acc = scale_by_rms(acc, sums, eps, K, 2 * ROWS)
        gate, up = acc.reshape([64, 2, ROWS]).permute(0, 2, 1).split()
        gate = gate.to(narrow).to(gl.float32)
        result = _activated(gate, GELU) * up.to(narrow).to(gl.float32)
        tile = gl.convert_layout(result.to(narrow), store_layout)
        token = first_token + gl.arange(0, 64, gl.SliceLayout(1, store_layout))
        column = n * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, store_layout))
        at = token.to(gl.int64)[:, None] * N + column[None, :]
        gl.store(out + at, tile, mask=(token < num_tokens)[:, None])


@gluon.jit(do_not_specialize=["num_tokens", "num_m", "num_parts", "squares_stride"])
def _hopper_gated_kernel(
    x_desc, w_desc, out, squares, num_tokens, num_m, num_parts, squares_stride, eps,
    N: gl.constexpr, K: gl.constexpr, ROWS: gl.constexpr, GELU: gl.constexpr,
    HAS_NORM: gl.constexpr, PARTS: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    OVERLAP: gl.constexpr,
):  # fmt: skip
    x_s, w_s, full, free = allocate(x_desc.dtype, 2 * ROWS, STAGES)
    gl.warp_specialize(
        [
            (_consumer, (0, out, squares, x_s, w_s, full, free, num_tokens, num_m, num_parts,
                         squares_stride, eps, N, K, ROWS, GELU, HAS_NORM, PARTS, STAGES, GROUP,
                         OVERLAP)),
            (_consumer, (1, out, squares, x_s, w_s, full, free, num_tokens, num_m, num_parts,
                         squares_stride, eps, N, K, ROWS, GELU, HAS_NORM, PARTS, STAGES, GROUP,
                         OVERLAP)),
            (produce, (x_desc, w_desc, x_desc, x_s, w_s, full, free, num_m, N // ROWS, K, ROWS,
                       N, 2 * ROWS, False, STAGES, GROUP, OVERLAP)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )  # fmt: skip


def can_run(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this kernel covers the case: Hopper, 16 bits, whole tiles of the weight [2I, K]."""
    return (
        x.is_cuda
        and capability(x.device)[0] == 9
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.is_contiguous()
        and weight.is_contiguous()
        and weight.shape[0] % (2 * ROWS.value) == 0
        and weight.shape[1] % BLOCK_K.value == 0
    )


def pays(num_tokens: int, num_rows: int, cores: int) -> bool:
    """Whether it is faster than cuBLAS's product and an activation behind it. num_rows: I.

    Measured on an H200 under its power limit, Llama-3.1-8B's layer: 128 tokens 3.5 %, 256 1.5 %,
    1,024 2.5 %, 8,192 1.2 % of all four products. 512 lose 2 %: few rounds over the cores, the last
    of them half empty, and cuBLAS has other tiles for that. Above a number of tokens it always
    pays, so the largest step, which is measured at start-up, is the one that needs most memory.
    """
    if num_tokens < MIN_TOKENS:
        return False
    tiles = triton.cdiv(num_tokens, BLOCK_M) * (num_rows // ROWS.value)
    if num_tokens <= FEW_TOKENS:
        return bool(tiles >= MIN_FILL_OF_FEW * triton.cdiv(tiles, cores) * cores)
    return bool(tiles >= MIN_ROUNDS * cores)


def hopper_gated_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    gelu: bool,
    rows: int = ROWS.value,
    norm: NormInput | None = None,
    overlaps: bool = False,
) -> torch.Tensor:
    """As `linear_ops.gated_linear`, for what `can_run` allows and at least one token.

    norm: both products are divided by the rms of what x was made from. overlaps: the launch before
    lets this one start early, which fetches its first rows of the weight meanwhile.
    """
    num_tokens, width = x.shape
    num_rows = weight.shape[0] // 2
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    num_m = triton.cdiv(num_tokens, BLOCK_M)
    programs = min(num_cores(x.device), num_m * (num_rows // rows))
    stages = num_stages(2 * rows)
    assert not overlaps or width >= stages * BLOCK_K.value
    _hopper_gated_kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [64, BLOCK_K.value], layout),
        TensorDescriptor.from_tensor(weight, [rows, BLOCK_K.value], layout),
        out,
        out if norm is None else norm.squares,
        num_tokens,
        num_m,
        1 if norm is None else norm.num_parts,
        0 if norm is None else norm.squares.stride(0),
        0.0 if norm is None else norm.eps,
        N=num_rows,
        K=width,
        ROWS=rows,
        GELU=gelu,
        HAS_NORM=norm is not None,
        PARTS=2 if norm is None else max(2, triton.next_power_of_2(norm.num_parts)),
        STAGES=stages,
        GROUP=GROUP,
        OVERLAP=overlaps,
        num_warps=NUM_WARPS,
        maxnreg=MEAN_REGISTERS,
        **({"launch_pdl": True} if overlaps else {}),
    )
    return out
