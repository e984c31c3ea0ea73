"""Products of few or some hundred tokens with packed weights on Hopper, in Gluon.

A producer warp copies tiles of words and of tokens to shared memory by TMA; the words do not depend
on the kernel before this one, so it starts with them while that still runs. One or two warpgroups
turn words into 16-bit tiles in the very registers from which the matrix unit takes them: two halves
of 64 rows of the weight each, tokens on the narrow side. Long rows may be cut into pieces; the last
to arrive adds them up. What a decoder has around its products is done at the end, as in
`skinny_linear`; `packed_linear` does the plain product on any chip, and tests hold them together.
"""

from dataclasses import dataclass

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor
from triton.language.extra.cuda import gdc_wait

from octavo_kernels.gpu.hopper_packed_finish import add_pieces, finish
from octavo_kernels.gpu.hopper_packed_steps import first_rows, multiply_fp8, multiply_int4
from octavo_kernels.gpu.launch import capability
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, NormInput, NormOutput
from octavo_kernels.packed_weight import MAX_TILES, PackedWeight

# Names differ between Triton 3.6 and later.
_block_barrier = gl.barrier if hasattr(gl, "barrier") else gl.thread_barrier
_copy_in = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared

ROWS = 128
"""Of the weight in a tile: two halves of 64, with a gate one of each of its parts."""
WORDS = gl.constexpr(64)
HALF_BYTES = 64 * 64 * 2
SMALL_SHARED_BYTES = 108_000
"""So that two programs find room on a core."""
LARGE_SHARED_BYTES = 200_000
SQUARES_STRIDE = MAX_SKINNY_TOKENS
MAX_OVERLAPPED_TOKENS = 16
"""Starting a kernel before the one ahead has ended pays for the smallest products only."""


@dataclass(frozen=True)
class HopperConfig:
    num_consumers: int
    """Warpgroups, each with a tile of its own."""
    block_m: int
    """Tokens in a program."""
    split_k: int
    num_stages: int

    @property
    def scales_weights(self) -> bool:
        """Scales go onto the weights; else onto the sums of each group, which costs a sum each."""
        return self.block_m >= 64


def hopper_config(num_tokens: int, num_rows: int, num_steps: int, bits: int) -> HopperConfig:
    """Measured on an H200 at Llama-3.1-8B's shapes. num_rows: of the weight."""
    planes = 16 // bits
    tiles = num_rows // ROWS
    if num_tokens <= 64:
        block_m = max(16, triton.next_power_of_2(num_tokens))
    else:
        block_m = 64 if num_tokens <= 128 and tiles < 200 else 128
    is_wide = num_tokens > 64 or (num_tokens > 32 and tiles > 132)
    consumers = 2 if is_wide and tiles % 2 == 0 else 1
    programs = tiles // consumers * triton.cdiv(num_tokens, block_m)
    split_k, limit = 1, 224 if num_tokens <= 16 else 144
    while split_k < 4 and programs * split_k * 2 <= limit and num_steps // (split_k * 2) >= 2:
        split_k *= 2
    stage_bytes = consumers * 2 * HALF_BYTES + block_m * 128 * planes
    shared_bytes = SMALL_SHARED_BYTES if consumers == 1 else LARGE_SHARED_BYTES
    stages = max(2, min(8, shared_bytes // stage_bytes))
    return HopperConfig(consumers, block_m, split_k, stages)


@gluon.jit
def _copy_words(descriptor, words, barrier, stage, step, tile, N: gl.constexpr,
                GATED: gl.constexpr, CONSUMERS: gl.constexpr, IS_INT4: gl.constexpr):  # fmt: skip
    for consumer in gl.static_range(CONSUMERS):
        row0, row1 = first_rows(tile + consumer, N, GATED)
        place = (stage * CONSUMERS + consumer) * 2
        if IS_INT4:
            _copy_in(descriptor, [step * N + row0, 0], barrier, words.index(place))
            _copy_in(descriptor, [step * N + row1, 0], barrier, words.index(place + 1))
        else:
            _copy_in(descriptor, [row0, step * WORDS], barrier, words.index(place))
            _copy_in(descriptor, [row1, step * WORDS], barrier, words.index(place + 1))


@gluon.jit
def _copy_tokens(descriptor, tokens, barrier, stage, step, first_token, PLANES: gl.constexpr):
    for plane in gl.static_range(PLANES):
        _copy_in(descriptor, [first_token, (step * PLANES + plane) * WORDS], barrier,
                 tokens.index(stage * PLANES + plane))  # fmt: skip


@gluon.jit
def _producer(
    words_desc, x_desc, words, tokens, full, free, first_step, num_steps, tile, first_token,
    N: gl.constexpr, GATED: gl.constexpr, CONSUMERS: gl.constexpr, IS_INT4: gl.constexpr,
    PLANES: gl.constexpr, STAGE_BYTES: gl.constexpr, STAGES: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    for first in gl.static_range(STAGES):
        if first < num_steps:
            mbarrier.expect(full.index(first), STAGE_BYTES)
            _copy_words(words_desc, words, full.index(first), first, first_step + first, tile, N,
                        GATED, CONSUMERS, IS_INT4)  # fmt: skip
    if OVERLAP:
        gdc_wait()
    for first in gl.static_range(STAGES):
        if first < num_steps:
            _copy_tokens(x_desc, tokens, full.index(first), first, first_step + first, first_token,
                         PLANES)  # fmt: skip
    for step in range(STAGES, num_steps):
        stage = step % STAGES
        mbarrier.wait(free.index(stage), ((step // STAGES) & 1) ^ 1)
        mbarrier.expect(full.index(stage), STAGE_BYTES)
        _copy_words(words_desc, words, full.index(stage), stage, first_step + step, tile, N,
                    GATED, CONSUMERS, IS_INT4)  # fmt: skip
        _copy_tokens(x_desc, tokens, full.index(stage), stage, first_step + step, first_token,
                     PLANES)  # fmt: skip


@gluon.jit
def _consumer(
    CONSUMER: gl.constexpr, scales, zeros, bias, out, residual, scaled, gamma, squares_in,
    squares_out, partial, arrivals, words, tokens, full, free, first_step, num_steps, first_tile,
    token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset,
    N: gl.constexpr, K: gl.constexpr, SCALE_ROWS: gl.constexpr, HAS_GROUPS: gl.constexpr,
    HAS_ZEROS: gl.constexpr, SCALES_WEIGHTS: gl.constexpr, IS_INT4: gl.constexpr,
    BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr, SPLIT_K: gl.constexpr,
    PARTS: gl.constexpr, STRIDE: gl.constexpr, GATED: gl.constexpr, HAS_NORM: gl.constexpr,
    HAS_BIAS: gl.constexpr, ADDS: gl.constexpr, OVERLAP: gl.constexpr,
):  # fmt: skip
    tile = first_tile + CONSUMER
    row0, row1 = first_rows(tile, N, GATED)
    if IS_INT4:
        acc0, acc1 = multiply_int4(
            CONSUMER, scales, zeros, words, tokens, full, free, row0, row1, first_step, num_steps,
            N, K, HAS_ZEROS, SCALES_WEIGHTS, BLOCK_M, STAGES, CONSUMERS, OVERLAP,
        )  # fmt: skip
    else:
        acc0, acc1 = multiply_fp8(
            CONSUMER, scales, words, tokens, full, free, row0, row1, first_step, num_steps,
            N, SCALE_ROWS, HAS_GROUPS, BLOCK_M, STAGES, CONSUMERS, OVERLAP,
        )  # fmt: skip
    is_mine = SPLIT_K == 1
    if SPLIT_K > 1:
        unit = tile * token_tiles + token_tile
        acc0, acc1, is_mine = add_pieces(
            acc0, acc1, partial, arrivals, unit, piece, BLOCK_M, SPLIT_K
        )
    if is_mine:
        finish(
            acc0, acc1, scales, bias, out, residual, scaled, gamma, squares_in, squares_out, tile,
            row0, row1, token_tile, num_tokens, num_parts, eps, gamma_offset, N, K, SCALE_ROWS,
            (not IS_INT4) and (not HAS_GROUPS), BLOCK_M, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS,
            ADDS,
        )  # fmt: skip


@gluon.jit(do_not_specialize=["num_tokens", "num_parts", "token_tiles"])
def _hopper_packed_kernel(
    words_desc, x_desc, scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
    partial, arrivals, num_tokens, num_parts, token_tiles, eps, gamma_offset,
    N: gl.constexpr, K: gl.constexpr, STEPS: gl.constexpr, SCALE_ROWS: gl.constexpr,
    HAS_GROUPS: gl.constexpr, HAS_ZEROS: gl.constexpr, SCALES_WEIGHTS: gl.constexpr,
    IS_INT4: gl.constexpr, BLOCK_M: gl.constexpr, STAGES: gl.constexpr, CONSUMERS: gl.constexpr,
    SPLIT_K: gl.constexpr, PARTS: gl.constexpr, STRIDE: gl.constexpr, GATED: gl.constexpr,
    HAS_NORM: gl.constexpr, HAS_BIAS: gl.constexpr, ADDS: gl.constexpr, OVERLAP: gl.constexpr,
    CONSUMER_REGISTERS: gl.constexpr,
):  # fmt: skip
    layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    PLANES: gl.constexpr = 4 if IS_INT4 else 2
    STAGE_BYTES: gl.constexpr = CONSUMERS * 2 * 64 * 64 * 2 + PLANES * BLOCK_M * 64 * 2
    words = gl.allocate_shared_memory(gl.int16, [STAGES * CONSUMERS * 2, 64, 64], layout)
    tokens = gl.allocate_shared_memory(x_desc.dtype, [STAGES * PLANES, BLOCK_M, 64], layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(free.index(stage), count=CONSUMERS)
    fence_async_shared()
    _block_barrier()
    program = gl.program_id(0)
    token_tile = program % token_tiles
    piece = (program // token_tiles) % SPLIT_K
    tile = program // (token_tiles * SPLIT_K) * CONSUMERS
    steps: gl.constexpr = (STEPS + SPLIT_K - 1) // SPLIT_K
    first_step = piece * steps
    num_steps = gl.minimum(steps, STEPS - first_step)
    if CONSUMERS == 1:
        gl.warp_specialize([
            (_consumer, (
                0,
                scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
                partial, arrivals, words, tokens, full, free, first_step, num_steps, tile,
                token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset, N, K,
                SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, SCALES_WEIGHTS, IS_INT4, BLOCK_M, STAGES,
                CONSUMERS, SPLIT_K, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS, OVERLAP,
            )),
            (_producer, (
                words_desc, x_desc, words, tokens, full, free, first_step, num_steps, tile,
                token_tile * BLOCK_M, N, GATED, CONSUMERS, IS_INT4, PLANES, STAGE_BYTES, STAGES,
                OVERLAP,
            )),
        ], [1], [24])  # fmt: skip
    else:
        gl.warp_specialize([
            (_consumer, (
                0,
                scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
                partial, arrivals, words, tokens, full, free, first_step, num_steps, tile,
                token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset, N, K,
                SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, SCALES_WEIGHTS, IS_INT4, BLOCK_M, STAGES,
                CONSUMERS, SPLIT_K, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS, OVERLAP,
            )),
            (_consumer, (
                1,
                scales, zeros, bias, out, residual, scaled, gamma, squares_in, squares_out,
                partial, arrivals, words, tokens, full, free, first_step, num_steps, tile,
                token_tile, token_tiles, piece, num_tokens, num_parts, eps, gamma_offset, N, K,
                SCALE_ROWS, HAS_GROUPS, HAS_ZEROS, SCALES_WEIGHTS, IS_INT4, BLOCK_M, STAGES,
                CONSUMERS, SPLIT_K, PARTS, STRIDE, GATED, HAS_NORM, HAS_BIAS, ADDS, OVERLAP,
            )),
            (_producer, (
                words_desc, x_desc, words, tokens, full, free, first_step, num_steps, tile,
                token_tile * BLOCK_M, N, GATED, CONSUMERS, IS_INT4, PLANES, STAGE_BYTES, STAGES,
                OVERLAP,
            )),
        ], [4, 1], [CONSUMER_REGISTERS, 24])  # fmt: skip


def can_run(weight: PackedWeight, dtype: torch.dtype) -> bool:
    """Whether this kernel covers the case: Hopper, whole tiles, a scale for 128 inputs or a row."""
    if weight.kind == "int8" or dtype not in (torch.bfloat16, torch.float16):
        return False
    if not weight.words.is_cuda or capability(weight.words.device)[0] != 9:
        return False
    has_groups = weight.kind == "int4" or not weight.has_row_scales
    return (
        weight.num_rows % ROWS == 0
        # TMA wants strides of 16 bytes.
        and weight.width % 8 == 0
        and not (has_groups and weight.group_size != 128)
        and not (weight.kind == "int4" and weight.scale_rows != 1)
        and not (weight.kind == "fp8" and weight.zeros is not None)
    )


def hopper_packed_linear(
    x: torch.Tensor,
    weight: PackedWeight,
    bias: torch.Tensor | None,
    *,
    gated: bool = False,
    norm: NormInput | None = None,
    add: NormOutput | None = None,
    overlaps: bool | None = None,
) -> torch.Tensor:
    """As `quant_ops.fused_packed_linear`, for what `can_run` allows; without a gate, norm and
    residual for any number of tokens. overlaps: see MAX_OVERLAPPED_TOKENS."""
    num_tokens = x.shape[0]
    config = hopper_config(num_tokens, weight.num_rows, weight.num_steps, weight.bits)
    token_tiles = triton.cdiv(num_tokens, config.block_m)
    units = weight.num_rows // ROWS * token_tiles
    num_rows = weight.num_rows // 2 if gated else weight.num_rows
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    partial = out
    if config.split_k > 1:
        assert units <= MAX_TILES
        size = (units, config.split_k, ROWS, config.block_m)
        partial = torch.empty(size, dtype=torch.float32, device=x.device)
    layout = gl.NVMMASharedLayout(128, 16, 2)
    words_desc = TensorDescriptor.from_tensor(weight.words.view(-1, *_words_row(weight)),
                                              [64, 64], layout)  # fmt: skip
    if overlaps is None:
        overlaps = num_tokens <= MAX_OVERLAPPED_TOKENS
    num_parts = 1 if norm is None else norm.num_parts
    has_groups = weight.kind == "int4" or not weight.has_row_scales
    is_large = config.num_consumers == 2
    _hopper_packed_kernel[(units // config.num_consumers * config.split_k,)](
        words_desc,
        TensorDescriptor.from_tensor(x, [config.block_m, 64], layout),
        weight.scales,
        weight.scales if weight.zeros is None else weight.zeros,
        out if bias is None else bias,
        out,
        out if add is None else add.residual,
        out if add is None else add.scaled,
        out if add is None else add.gamma,
        out if norm is None else norm.squares,
        out if add is None else add.squares,
        partial,
        weight.arrivals,
        num_tokens,
        num_parts,
        token_tiles,
        0.0 if norm is None else norm.eps,
        0.0 if add is None else add.gamma_offset,
        N=weight.num_rows,
        K=weight.width,
        STEPS=weight.num_steps,
        SCALE_ROWS=weight.scale_rows,
        HAS_GROUPS=has_groups,
        HAS_ZEROS=weight.zeros is not None,
        SCALES_WEIGHTS=config.scales_weights,
        IS_INT4=weight.kind == "int4",
        BLOCK_M=config.block_m,
        STAGES=config.num_stages,
        CONSUMERS=config.num_consumers,
        SPLIT_K=config.split_k,
        PARTS=triton.next_power_of_2(num_parts),
        STRIDE=SQUARES_STRIDE,
        GATED=gated,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=add is not None,
        OVERLAP=overlaps,
        CONSUMER_REGISTERS=232,
        num_warps=4,
        maxnreg=168 if is_large else 128,
        **({"launch_pdl": True} if overlaps else {}),
    )
    return out


def _words_row(weight: PackedWeight) -> tuple[int]:
    """Words in a row of the matrix that TMA sees."""
    return (64,) if weight.kind == "int4" else (weight.num_steps * 64,)
