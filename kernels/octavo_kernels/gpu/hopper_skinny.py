"""Products of 2 to 16 tokens with a 16-bit matrix on Hopper, in Gluon: weights ahead of the wait.

A producer warp fills a ring of tiles of the weight by TMA while the kernel in front still runs,
then waits for it and sends the tokens after them; a consumer warpgroup has two halves of 64 rows on
the matrix unit's wide side, tokens on its narrow one. What stands around is `hopper_packed`'s.
`skinny_linear` does the same on any chip, and tests hold the two together.
"""

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo_kernels.gpu.gluon_names import block_barrier
from octavo_kernels.gpu.hopper_packed_finish import add_pieces, finish
from octavo_kernels.gpu.hopper_packed_kernel import producer
from octavo_kernels.gpu.hopper_packed_steps import first_rows, wait_for_factors
from octavo_kernels.gpu.launch import capability
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, MAX_TILES, NormInput, NormOutput

ROWS = 128
"""Of the weight in a tile: two halves of 64."""
BLOCK_M = gl.constexpr(16)
"""Tokens, padded."""
BLOCK_K = gl.constexpr(64)
"""Inputs of a stage: a 128-byte row of swizzled shared memory."""
STAGES = gl.constexpr(10)
"""As many as a core has room for: whoever starts early then gets a core of its own, not half of
one. Two programs a core took 4.5 to 4.8 ms where these take 4.11 to 4.26."""
STAGE_BYTES = gl.constexpr((128 + 16) * 64 * 2)
MIN_STEPS = 8
"""Of BLOCK_K in a piece of long rows."""
MEAN_REGISTERS = 168
"""Of a thread, on average over warps."""
PRODUCER_REGISTERS = gl.constexpr(40)
"""24 are too few for ten stages begun before the loop."""


def num_pieces(num_rows: int, width: int, num_cores: int) -> int:
    """Into how many the rows of a weight [num_rows, width] are cut: as many as find a core each."""
    tiles, steps, pieces = num_rows // ROWS, width // BLOCK_K.value, 1
    while tiles * pieces * 2 <= num_cores and steps % (pieces * 2) == 0:
        if steps // (pieces * 2) < MIN_STEPS:
            break
        pieces *= 2
    return pieces


def pays(num_tokens: int, num_rows: int, width: int, num_cores: int) -> bool:
    """Whether this kernel is faster than `skinny_linear`: for few tokens, where its programs take
    most of the cores, each one to itself.

    A step of Llama-3.1-8B on an H200 with qkv, o and down by it, ms: 2 tokens 4.22 -> 4.11, 8
    4.31 -> 4.19, 16 4.32 -> 4.26; but 32 4.57 -> 4.65. With the gate, which has more tiles than
    there are cores, 4.17, 4.25 and 4.27.
    """
    programs = num_rows // ROWS * num_pieces(num_rows, width, num_cores)
    return 2 <= num_tokens <= BLOCK_M.value and 2 * num_cores <= 3 * programs <= 3 * num_cores


def can_run(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Whether this kernel covers the case: Hopper, 16 bits, whole tiles of the weight [N, K]."""
    return (
        x.is_cuda
        and capability(x.device)[0] == 9
        and x.dtype == weight.dtype
        and x.dtype in (torch.bfloat16, torch.float16)
        and x.is_contiguous()
        and weight.is_contiguous()
        and weight.shape[0] % ROWS == 0
        and weight.shape[0] // ROWS <= MAX_TILES
        and weight.shape[1] % BLOCK_K.value == 0
    )


@gluon.jit
def _consumer(
    bias, out, residual, scaled, gamma, squares_in, squares_out, partial, arrivals, rows, tokens,
    full, free, num_steps, tile, piece, num_tokens, num_parts, eps, gamma_offset, N: gl.constexpr,
    K: gl.constexpr, SPLIT_K: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr,
    HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr, ADDS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_M, 16])
    row0, row1 = first_rows(tile, N, False)
    acc0 = gl.zeros([64, BLOCK_M], gl.float32, layout)
    acc1 = gl.zeros([64, BLOCK_M], gl.float32, layout)
    factor = wait_for_factors(squares_in, num_tokens, num_parts, eps, K, BLOCK_M, PARTS, STRIDE,
                              HAS_NORM, False, True, layout)  # fmt: skip
    for step in range(num_steps):
        stage = step % STAGES
        mbarrier.wait(full.index(stage), (step // STAGES) & 1)
        inputs = tokens.index(stage).permute((1, 0))
        acc0 = warpgroup_mma(rows.index(stage * 2), inputs, acc0, is_async=True)
        acc1 = warpgroup_mma(rows.index(stage * 2 + 1), inputs, acc1, is_async=True)
        acc0, acc1 = warpgroup_mma_wait(0, deps=[acc0, acc1])
        mbarrier.arrive(free.index(stage), count=1)
    is_mine = SPLIT_K == 1
    if SPLIT_K > 1:
        acc0, acc1, is_mine = add_pieces(
            acc0, acc1, partial, arrivals, tile, piece, BLOCK_M, SPLIT_K
        )
    if is_mine:
        finish(
            acc0, acc1, factor, gamma, bias, out, residual, scaled, gamma, squares_out, tile, row0,
            row1, 0, num_tokens, gamma_offset, N, 1, False, BLOCK_M, STRIDE, False, HAS_NORM,
            HAS_BIAS, ADDS,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["num_tokens", "num_parts"])
def _hopper_skinny_kernel(
    w_desc, x_desc, bias, out, residual, scaled, gamma, squares_in, squares_out, partial, arrivals,
    num_tokens, num_parts, eps, gamma_offset, N: gl.constexpr, K: gl.constexpr,
    SPLIT_K: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_BIAS: gl.constexpr, ADDS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    rows = gl.allocate_shared_memory(w_desc.dtype, [STAGES * 2, 64, BLOCK_K], layout)
    tokens = gl.allocate_shared_memory(x_desc.dtype, [STAGES, BLOCK_M, BLOCK_K], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=1)
    fence_async_shared()
    block_barrier()
    tile = gl.program_id(0) // SPLIT_K
    piece = gl.program_id(0) % SPLIT_K
    num_steps: gl.constexpr = K // BLOCK_K // SPLIT_K
    gl.warp_specialize([
        (_consumer, (
            bias, out, residual, scaled, gamma, squares_in, squares_out, partial, arrivals, rows,
            tokens, full, free, num_steps, tile, piece, num_tokens, num_parts, eps, gamma_offset,
            N, K, SPLIT_K, PARTS, STRIDE, HAS_NORM, HAS_BIAS, ADDS,
        )),
        (producer, (
            w_desc, x_desc, rows, tokens, full, free, piece * num_steps, num_steps, tile, 0, N,
            False, 1, False, 1, STAGE_BYTES, STAGES, True,
        )),
    ], [1], [PRODUCER_REGISTERS])  # fmt: skip


def hopper_skinny_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    norm: NormInput | None,
    add: NormOutput | None,
    arrivals: torch.Tensor,
    num_cores: int,
) -> torch.Tensor:
    """As `linear_ops.skinny_linear` without a gate, for what `can_run` allows. Launched before the
    kernel in front has ended; arrivals are touched behind the wait for it, so all may share them.
    """
    num_tokens, width = x.shape
    num_rows = len(weight)
    split_k = num_pieces(num_rows, width, num_cores)
    tiles = num_rows // ROWS
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    partial = out
    if split_k > 1:
        size = (tiles, split_k, ROWS, BLOCK_M.value)
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
    num_parts = 1 if norm is None else norm.num_parts
    layout = gl.NVMMASharedLayout(128, 16, 2)
    _hopper_skinny_kernel[(tiles * split_k,)](
        TensorDescriptor.from_tensor(weight, [64, BLOCK_K.value], layout),
        TensorDescriptor.from_tensor(x, [BLOCK_M.value, BLOCK_K.value], layout),
        out if bias is None else bias,
        out,
        out if add is None else add.residual,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if norm is None else norm.squares,
        out if add is None else add.squares,
        partial,
        arrivals,
        num_tokens,
        num_parts,
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        N=num_rows,
        K=width,
        SPLIT_K=split_k,
        PARTS=triton.next_power_of_2(num_parts),
        STRIDE=MAX_SKINNY_TOKENS,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=add is not None,
        num_warps=4,
        maxnreg=MEAN_REGISTERS,
        launch_pdl=True,
    )
    return out
