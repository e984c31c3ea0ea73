"""One block of keys in a consumer warpgroup of the Gluon prefill: scores, softmax, values.

Matrix products run asynchronously; which of them is waited for, and when, is what these hold.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = gl.constexpr(64)
"""Queries of a consumer."""
MASKED = gl.constexpr(-1.0e30)


@gluon.jit
def softmax(
    logits, maximum, total, first_key, position, window, scale,
    MASK: gl.constexpr, HAS_WINDOW: gl.constexpr, BLOCK_N: gl.constexpr, layout: gl.constexpr,
):  # fmt: skip
    """logits q.k -> (weights, new maximum, decay of what came before, new total)."""
    if MASK:
        key = first_key + gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
        visible = key[None, :] <= position[:, None]
        if HAS_WINDOW:
            visible = visible & (key[None, :] > position[:, None] - window)
        # Masked behind the scale: of a row that sees nothing here, MASKED * scale less its own
        # rounding, in one instruction, would be off by 1e22, whose exp2 is infinite.
        logits = gl.where(visible, logits * scale, MASKED)
        new_maximum = gl.maximum(maximum, gl.max(logits, 1))
        weights = gl.exp2(logits - new_maximum[:, None])
    else:
        new_maximum = gl.maximum(maximum, gl.max(logits, 1) * scale)
        weights = gl.exp2(logits * scale - new_maximum[:, None])
    decay = gl.exp2(maximum - new_maximum)
    return weights, new_maximum, decay, total * decay + gl.sum(weights, 1)


@gluon.jit
def attend_first(
    q, k_s, k_full, k_free, step, maximum, total, first_key, position, window, scale,
    HAS_WINDOW: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """Scores of a tile's first block; there are no values to use yet."""
    stage = step % STAGES
    mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    logits = warpgroup_mma(q, k_s.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    logits = warpgroup_mma_wait(0, deps=[logits])
    mbarrier.arrive(k_free.index(stage), count=1)
    weights, maximum, _, total = softmax(
        logits, maximum, total, first_key, position, window, scale, True, HAS_WINDOW, BLOCK_N,
        s_layout,
    )  # fmt: skip
    narrow = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, o_layout, 2))
    return narrow, maximum, total


@gluon.jit
def attend_next(
    q, k_s, v_s, k_full, k_free, v_full, v_free, step, acc, maximum, total, narrow, first_key,
    position, window, scale,
    MASK: gl.constexpr, HAS_WINDOW: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """Scores of block `step` while the values of the block before are weighed and added up."""
    stage = step % STAGES
    mbarrier.wait(k_full.index(stage), (step // STAGES) & 1)
    zeros = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    logits = warpgroup_mma(q, k_s.index(stage).permute((1, 0)), zeros, use_acc=False, is_async=True)
    before = (step - 1) % STAGES
    mbarrier.wait(v_full.index(before), ((step - 1) // STAGES) & 1)
    acc = warpgroup_mma(narrow, v_s.index(before), acc, is_async=True)
    logits = warpgroup_mma_wait(1, deps=[logits])
    mbarrier.arrive(k_free.index(stage), count=1)
    weights, maximum, decay, total = softmax(
        logits, maximum, total, first_key, position, window, scale, MASK, HAS_WINDOW, BLOCK_N,
        s_layout,
    )  # fmt: skip
    # Naming the weights as a dependency keeps the compiler from sinking the softmax below the wait.
    acc, weights = warpgroup_mma_wait(0, deps=[acc, weights])
    mbarrier.arrive(v_free.index(before), count=1)
    acc = acc * gl.convert_layout(decay, gl.SliceLayout(1, o_layout))[:, None]
    narrow = gl.convert_layout(weights.to(q.dtype), gl.DotOperandLayout(0, o_layout, 2))
    return acc, maximum, total, narrow
