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
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo_kernels.gpu.gluon_names import REINTERPRET_IS_PUBLIC, block_barrier, copy_in
from octavo_kernels.gpu.launch import capability, num_cores

BLOCK_M = 128
"""Tokens of a tile, half of them a consumer's."""
ROWS = gl.constexpr(128)
"""Rows of either half of the weight in a tile."""
BLOCK_K = gl.constexpr(64)
"""Inputs of a stage: a 128-byte row of swizzled shared memory."""
STAGES = 4
GROUP = 8
"""Tiles of tokens that go over the weight together: its rows then come from the second-level cache
but once for all of them."""
MIN_TOKENS = 65
FEW_TOKENS = 256
MIN_FILL_OF_FEW = 0.8
MIN_ROUNDS = 6


@gluon.jit
def _place(item, num_m, num_n, GROUP: gl.constexpr):
    """An item's tile of tokens and tile of rows: all rows for GROUP tiles of tokens, then on."""
    first = item // (GROUP * num_n) * GROUP
    size = gl.minimum(num_m - first, GROUP)
    rest = item % (GROUP * num_n)
    return first + rest % size, rest // size


@gluon.jit
def _producer(
    x_desc, w_desc, x_s, w_s, full, free, num_m,
    N: gl.constexpr, K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    halves: gl.constexpr = [2, ROWS, BLOCK_K]
    step = 0
    for item in range(gl.program_id(0), num_m * (N // ROWS), gl.num_programs(0)):
        m, n = _place(item, num_m, N // ROWS, GROUP)
        for k in range(0, K, BLOCK_K):
            stage = step % STAGES
            mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
            mbarrier.expect(full.index(stage), (2 * 64 + 2 * ROWS) * BLOCK_K * 2)
            for consumer in gl.static_range(2):
                copy_in(x_desc, [m * 128 + consumer * 64, k], full.index(stage),
                        x_s.index(stage * 2 + consumer))  # fmt: skip
            if REINTERPRET_IS_PUBLIC:
                rows = w_s.index(stage).reinterpret(w_desc.dtype, halves, layout)
            else:
                rows = w_s.index(stage)._reinterpret(w_desc.dtype, halves, layout)
            copy_in(w_desc, [n * ROWS, k], full.index(stage), rows.index(0))
            copy_in(w_desc, [N + n * ROWS, k], full.index(stage), rows.index(1))
            step += 1


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
    CONSUMER: gl.constexpr, out, x_s, w_s, full, free, num_tokens, num_m,
    N: gl.constexpr, K: gl.constexpr, GELU: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 2 * ROWS, 16])
    store_layout: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
    narrow: gl.constexpr = out.dtype.element_ty
    step = 0
    for item in range(gl.program_id(0), num_m * (N // ROWS), gl.num_programs(0)):
        m, n = _place(item, num_m, N // ROWS, GROUP)
        acc = gl.zeros([64, 2 * ROWS], gl.float32, acc_layout)
        for _ in range(0, K, BLOCK_K):
            stage = step % STAGES
            mbarrier.wait(full.index(stage), (step // STAGES) & 1)
            x = x_s.index(stage * 2 + CONSUMER)
            acc = warpgroup_mma(x, w_s.index(stage).permute((1, 0)), acc, is_async=True)
            acc = warpgroup_mma_wait(1, deps=[acc])
            # The stage before has been read; a tile's last one is told with the next tile's first.
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), count=1, pred=step > 0)
            step += 1
        acc = warpgroup_mma_wait(0, deps=[acc])
        gate, up = acc.reshape([64, 2, ROWS]).permute(0, 2, 1).split()
        gate = gate.to(narrow).to(gl.float32)
        result = _activated(gate, GELU) * up.to(narrow).to(gl.float32)
        tile = gl.convert_layout(result.to(narrow), store_layout)
        token = m * 128 + CONSUMER * 64 + gl.arange(0, 64, gl.SliceLayout(1, store_layout))
        column = n * ROWS + gl.arange(0, ROWS, gl.SliceLayout(0, store_layout))
        at = token.to(gl.int64)[:, None] * N + column[None, :]
        gl.store(out + at, tile, mask=(token < num_tokens)[:, None])


@gluon.jit(do_not_specialize=["num_tokens", "num_m"])
def _hopper_gated_kernel(
    x_desc, w_desc, out, num_tokens, num_m,
    N: gl.constexpr, K: gl.constexpr, GELU: gl.constexpr, STAGES: gl.constexpr,
    GROUP: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    x_s = gl.allocate_shared_memory(x_desc.dtype, [STAGES * 2, 64, BLOCK_K], layout)
    w_s = gl.allocate_shared_memory(w_desc.dtype, [STAGES, 2 * ROWS, BLOCK_K], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=2)
    fence_async_shared()
    block_barrier()
    gl.warp_specialize(
        [
            (_consumer, (0, out, x_s, w_s, full, free, num_tokens, num_m, N, K, GELU, STAGES,
                         GROUP)),
            (_consumer, (1, out, x_s, w_s, full, free, num_tokens, num_m, N, K, GELU, STAGES,
                         GROUP)),
            (_producer, (x_desc, w_desc, x_s, w_s, full, free, num_m, N, K, STAGES, GROUP)),
        ],
        [4, 1],
        [240, 24],
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


def hopper_gated_linear(x: torch.Tensor, weight: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    """As `linear_ops.gated_linear`, for what `can_run` allows and at least one token."""
    num_tokens, width = x.shape
    num_rows = weight.shape[0] // 2
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    num_m = triton.cdiv(num_tokens, BLOCK_M)
    programs = min(num_cores(x.device), num_m * (num_rows // ROWS.value))
    _hopper_gated_kernel[(programs,)](
        TensorDescriptor.from_tensor(x, [64, BLOCK_K.value], layout),
        TensorDescriptor.from_tensor(weight, [ROWS.value, BLOCK_K.value], layout),
        out,
        num_tokens,
        num_m,
        N=num_rows,
        K=width,
        GELU=gelu,
        STAGES=STAGES,
        GROUP=GROUP,
        num_warps=4,
        maxnreg=168,
    )
    return out
