"""Products of few or some hundred tokens with packed weights on Hopper: shapes, splits, launch.

What a decoder has around its products is done at the end of them, as in `skinny_linear`.
`packed_linear` does the plain product on any chip, and tests hold the two together.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from octavo_kernels.gpu.hopper_packed_kernel import hopper_packed_kernel
from octavo_kernels.gpu.launch import capability
from octavo_kernels.linear_ops import MAX_SKINNY_TOKENS, NormInput, NormOutput
from octavo_kernels.packed_weight import MAX_TILES, PackedWeight

ROWS = 128
"""Of the weight in a tile: two halves of 64, with a gate one of each of its parts."""
HALF_BYTES = 64 * 64 * 2
SMALL_SHARED_BYTES = 108_000
"""So that two programs find room on a core."""
LARGE_SHARED_BYTES = 200_000
SQUARES_STRIDE = MAX_SKINNY_TOKENS
ALONE_REGISTERS = 128
"""Of a thread, so that two programs find room on a core..."""
CONSUMER_REGISTERS = 232
"""...and of one of two consumers', out of what all warps have on average."""
MEAN_REGISTERS = 168
MANY_PARTS = 128
"""Of a token's squares, from which on all threads share in summing them up."""
MAX_OVERLAPPED_TOKENS = MAX_SKINNY_TOKENS
"""A product starts, and its words are under way, before the kernel ahead has ended."""
FEW_TOKENS = 16
MANY_STEPS = 8
NUM_CORES = 132
"""Of a Hopper GPU."""


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
    split_k, limit = 1, 224 if num_tokens <= FEW_TOKENS else 144
    while split_k < 4 and programs * split_k * 2 <= limit and num_steps // (split_k * 2) >= 2:
        split_k *= 2
    stage_bytes = consumers * 2 * HALF_BYTES + block_m * 128 * planes
    has_core = _has_core(num_tokens, programs * split_k, num_steps // split_k)
    shared_bytes = LARGE_SHARED_BYTES if consumers == 2 or has_core else SMALL_SHARED_BYTES
    stages = max(2, min(8, shared_bytes // stage_bytes))
    return HopperConfig(consumers, block_m, split_k, stages)


def _has_core(num_tokens: int, num_programs: int, num_steps: int) -> bool:
    """Whether each program has a core to itself. Programs that start early would otherwise share
    the core that is free first: a step of Llama-3.1-8B in int4 took 3.24 ms, not 2.92, at 32
    tokens. Of few tokens only pieces of many steps gain by it: 2.48 -> 2.40 ms at 8 tokens.
    """
    if num_tokens > MAX_OVERLAPPED_TOKENS or num_programs > NUM_CORES:
        return False
    return num_tokens > FEW_TOKENS or num_steps > MANY_STEPS


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
    if overlaps is None:
        overlaps = num_tokens <= MAX_OVERLAPPED_TOKENS
    num_parts = 1 if norm is None else norm.num_parts
    hopper_packed_kernel[(units // config.num_consumers * config.split_k,)](
        *_descriptors(x, weight, config),
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
        PARTS=triton.next_power_of_2(num_parts),
        STRIDE=SQUARES_STRIDE,
        GATED=gated,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        ADDS=add is not None,
        ONE_TOKEN=num_tokens == 1 and num_parts >= MANY_PARTS,
        OVERLAP=overlaps,
        **_constants(weight, config),
        **({"launch_pdl": True} if overlaps else {}),
    )
    return out


def _descriptors(
    x: torch.Tensor, weight: PackedWeight, config: HopperConfig
) -> tuple[TensorDescriptor, TensorDescriptor]:
    """Of the words, in rows as TMA sees them, and of the tokens."""
    layout = gl.NVMMASharedLayout(128, 16, 2)
    words_in_row = 64 if weight.kind == "int4" else weight.num_steps * 64
    words = weight.words.view(-1, words_in_row)
    return (
        TensorDescriptor.from_tensor(words, [64, 64], layout),
        TensorDescriptor.from_tensor(x, [config.block_m, 64], layout),
    )


def _constants(weight: PackedWeight, config: HopperConfig) -> dict[str, Any]:
    """What a weight and its configuration compile into the kernel."""
    return {
        "N": weight.num_rows,
        "K": weight.width,
        "STEPS": weight.num_steps,
        "SCALE_ROWS": weight.scale_rows,
        "HAS_GROUPS": weight.kind == "int4" or not weight.has_row_scales,
        "HAS_ZEROS": weight.zeros is not None,
        "SCALES_WEIGHTS": config.scales_weights,
        "IS_INT4": weight.kind == "int4",
        "BLOCK_M": config.block_m,
        "STAGES": config.num_stages,
        "CONSUMERS": config.num_consumers,
        "SPLIT_K": config.split_k,
        "CONSUMER_REGISTERS": CONSUMER_REGISTERS,
        "num_warps": 4,
        "maxnreg": ALONE_REGISTERS if config.num_consumers == 1 else MEAN_REGISTERS,
    }
