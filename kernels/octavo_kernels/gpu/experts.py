"""Products of tokens with the experts chosen for them: every expert's in one launch.

    plan      pairs sorted by expert, in tiles of one expert each (`expert_plan`)
    gate_up   x of a tile's tokens by its expert's gate and up, activated: [P, I]
    down      that by the expert's down, biased and weighted: [P, H]
    sum       over the experts of a token: [T, H]

As in `skinny_linear` a program has rows of a weight on the matrix unit's wide side and a tile of
pairs on its narrow one. Launches depend on shapes alone.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from octavo_kernels.expert_ops import ExpertWeights
from octavo_kernels.gpu.expert_plan import ExpertPlan, plan_experts
from octavo_kernels.gpu.launch import capability, overlap_options, wait_for_previous

MIN_BLOCK_M, MAX_BLOCK_M = 16, 128
SUM_BLOCK = 1024
MIN_WIDE_AVERAGE = 512
"""Pairs of an expert from which twice the rows of gate and up in a program are faster."""


@dataclass(frozen=True)
class ExpertConfig:
    block_n: int
    """Rows of the weight in a program; with a gate as many again."""
    block_m: int
    """Pairs of a tile."""
    block_k: int
    num_stages: int
    num_warps: int


def choose_block_m(num_pairs: int, num_experts: int) -> int:
    """Twice what an expert gets on average: most experts' weights are then read once. 128 only
    where the average fills it: half empty, such tiles are slower than two of 64."""
    average = triton.cdiv(num_pairs, num_experts)
    widest = MAX_BLOCK_M if average >= MAX_BLOCK_M else MAX_BLOCK_M // 2
    return int(min(widest, max(MIN_BLOCK_M, triton.next_power_of_2(2 * average))))


def expert_config(
    block_m: int, itemsize: int, *, gated: bool, is_hopper: bool = True, average: int = 0
) -> ExpertConfig:
    """average: pairs of an expert. The best of `python -m tests.bench.gpu_experts --sweep` on an
    H200, at 1 to 8,192 tokens of Qwen3-30B-A3B and gpt-oss-20B."""
    if itemsize == 4:
        return ExpertConfig(32, block_m, 32, 2, 4)
    if not is_hopper:  # has half of the shared memory, or less
        return ExpertConfig(64, block_m, 64, 2, 8 if block_m == MAX_BLOCK_M else 4)
    if block_m == MAX_BLOCK_M:
        if average >= MIN_WIDE_AVERAGE:
            return ExpertConfig(128, block_m, 64, 4, 8)
        return ExpertConfig(64 if gated else 128, block_m, 64, 3, 8)
    if block_m == 64:
        return ExpertConfig(64, block_m, 64, 3, 4)
    if block_m == 32:
        return ExpertConfig(64, block_m, 64, 5, 4)
    return ExpertConfig(64, block_m, 128, 3 if gated else 4, 4)


@triton.jit
def _load_rows(w, w_descriptor, row, row_limit, k, k_limit, offset, STRIDE: tl.constexpr,
               BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
               USE_TMA: tl.constexpr):  # fmt: skip
    """Rows [row, row + BLOCK_N) and inputs from k on; rows beyond row_limit hold anything finite.
    offset: of the columns, where a row of w holds two of the weight."""
    if USE_TMA:
        tile = w_descriptor.load([row, offset + k])
    else:
        rows = tl.minimum(row + tl.arange(0, BLOCK_N), row_limit - 1).to(tl.int64)
        column = k + tl.arange(0, BLOCK_K)
        at = w + rows[:, None] * STRIDE + (offset + column)[None, :]
        inside = (column < k_limit)[None, :]
        tile = tl.load(at) if EVEN_K else tl.load(at, mask=inside, other=0.0)
    return tile


@triton.jit
def _sigmoid(x):
    """Without an overflow on either side."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _activated(gate, up, alpha, limit, KIND: tl.constexpr):
    if KIND == "clamped_swiglu":
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit)
        result = (up + 1.0) * gate * _sigmoid(alpha * gate)
    elif KIND == "gelu_tanh":
        # gelu's tanh formula: 0.5 * (1 + tanh(z)) is sigmoid(2 z).
        cubic = gate + 0.044715 * gate * gate * gate
        result = up * gate * _sigmoid(1.5957691216057308 * cubic)
    else:
        result = up * gate * _sigmoid(gate)
    return result


@triton.jit
def _expert_kernel(
    x,
    w,
    w_descriptor,
    bias,
    pair_weights,
    out,
    tiles,
    order,
    alpha,
    limit,
    N: tl.constexpr,
    K: tl.constexpr,
    TOP_K: tl.constexpr,
    INTERLEAVED: tl.constexpr,
    KIND: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
    USE_TMA: tl.constexpr,
):
    """KIND "": x is a row a pair, the product is weighted. Else x is a row a token (TOP_K pairs),
    and w has a gate and an up of N rows each, of which the activation makes one."""
    tile = tl.program_id(0)
    expert = tl.load(tiles + tile * 3)
    if expert < 0:
        return
    GATED: tl.constexpr = KIND != ""
    narrow: tl.constexpr = out.dtype.element_ty
    lane = tl.load(tiles + tile * 3 + 1) + tl.arange(0, BLOCK_M)
    inside = lane < tl.load(tiles + tile * 3 + 2)
    pair = tl.load(order + lane, mask=inside, other=0)
    source = x + (pair // TOP_K if GATED else pair).to(tl.int64)[None, :] * K

    # Interleaved, a row of what w is seen as has a row of the gate and one of up side by side.
    TWO: tl.constexpr = 2 if GATED and INTERLEAVED else 1
    ROWS: tl.constexpr = 2 * N if GATED and not INTERLEAVED else N
    STRIDE: tl.constexpr = TWO * K
    EVEN_K: tl.constexpr = K % BLOCK_K == 0
    first_row = tl.program_id(1) * BLOCK_N
    row = first_row + tl.arange(0, BLOCK_N)
    w += 0 if USE_TMA else expert.to(tl.int64) * (ROWS * STRIDE)
    begin = first_row + (expert * ROWS if USE_TMA else 0)
    up_begin = begin + (0 if INTERLEAVED else N)

    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    up = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        column = k + tl.arange(0, BLOCK_K)
        wanted = inside[None, :] if EVEN_K else inside[None, :] & (column < K)[:, None]
        tokens = tl.load(source + column[:, None], mask=wanted, other=0.0)
        rows = _load_rows(w, w_descriptor, begin, N, k, K, 0, STRIDE, BLOCK_N, BLOCK_K, EVEN_K,
                          USE_TMA)  # fmt: skip
        acc = tl.dot(rows, tokens, acc, input_precision="ieee")
        if GATED:
            rows = _load_rows(w, w_descriptor, up_begin, ROWS, k, K, K if INTERLEAVED else 0,
                              STRIDE, BLOCK_N, BLOCK_K, EVEN_K, USE_TMA)  # fmt: skip
            up = tl.dot(rows, tokens, up, input_precision="ieee")

    if HAS_BIAS:
        step: tl.constexpr = TWO
        at = bias + expert.to(tl.int64) * (2 * N if GATED else N) + row * step
        acc += tl.load(at, mask=row < N, other=0.0).to(tl.float32)[:, None]
        if GATED:
            at += 1 if INTERLEAVED else N
            up += tl.load(at, mask=row < N, other=0.0).to(tl.float32)[:, None]
    # Rounded as the product alone would be.
    acc = acc.to(narrow).to(tl.float32)
    if GATED:
        acc = _activated(acc, up.to(narrow).to(tl.float32), alpha, limit, KIND)
    else:
        weight = tl.load(pair_weights + pair, mask=inside, other=0.0).to(tl.float32)
        acc *= weight[None, :]
    at = out + pair.to(tl.int64)[:, None] * N + row[None, :]
    tl.store(at, tl.trans(acc).to(narrow), mask=inside[:, None] & (row < N)[None, :])


@triton.jit
def _sum_pairs_kernel(
    partial, out, WIDTH, TOP_K: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    wait_for_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for idx in tl.static_range(TOP_K):
        source = partial + (token * TOP_K + idx) * WIDTH + column
        total += tl.load(source, mask=column < WIDTH, other=0.0).to(tl.float32)
    tl.store(out + token * WIDTH + column, total.to(out.dtype.element_ty), mask=column < WIDTH)


def grouped_experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    chosen: torch.Tensor,
    experts: ExpertWeights,
    *,
    block_m: int | None = None,
    use_tma: bool | None = None,
) -> torch.Tensor:
    """As `expert_ops.grouped_experts`; block_m and use_tma None: what suits shapes and GPU."""
    num_tokens, top_k = chosen.shape
    num_experts, hidden, inner = experts.down.shape
    if not num_tokens:
        return torch.empty_like(x)
    block_m = block_m or choose_block_m(chosen.numel(), num_experts)
    is_hopper = x.is_cuda and capability(x.device)[0] >= 9
    use_tma = is_hopper if use_tma is None else use_tma
    average = triton.cdiv(chosen.numel(), num_experts)
    plan = plan_experts(chosen.contiguous(), num_experts, block_m)
    made = torch.empty(chosen.numel(), inner, dtype=x.dtype, device=x.device)
    partial = torch.empty(chosen.numel(), hidden, dtype=x.dtype, device=x.device)
    x, weights = x.contiguous(), weights.contiguous()
    for source, target, is_gated in ((x, made, True), (made, partial, False)):
        config = expert_config(
            block_m, x.itemsize, gated=is_gated, is_hopper=use_tma, average=average
        )
        _multiply(source, weights, experts, plan, target, top_k, config, is_gated, use_tma)
    if top_k == 1:
        return partial
    out = torch.empty(num_tokens, hidden, dtype=x.dtype, device=x.device)
    _sum_pairs_kernel[(num_tokens, triton.cdiv(hidden, SUM_BLOCK))](
        partial, out, hidden, TOP_K=top_k, BLOCK=SUM_BLOCK, **overlap_options(x.device)
    )
    return out


def _multiply(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: ExpertWeights,
    plan: ExpertPlan,
    out: torch.Tensor,
    top_k: int,
    config: ExpertConfig,
    is_gated: bool,
    use_tma: bool,
) -> None:
    """One of the two products, of all pairs."""
    weight = experts.gate_up if is_gated else experts.down
    bias = experts.gate_up_bias if is_gated else experts.down_bias
    num_rows, width = out.shape[1], x.shape[1]
    is_interleaved = is_gated and experts.is_interleaved
    seen_width = 2 * width if is_interleaved else width
    # The copy engine takes rows of whole 16 bytes.
    use_tma = use_tma and seen_width * weight.element_size() % 16 == 0
    descriptor = None
    if use_tma:
        seen = weight.view(-1, seen_width)
        descriptor = TensorDescriptor.from_tensor(seen, [config.block_n, config.block_k])
    activation = experts.activation
    _expert_kernel[(len(plan.tiles), triton.cdiv(num_rows, config.block_n))](
        x,
        weight,
        descriptor,
        out if bias is None else bias,
        weights,
        out,
        plan.tiles,
        plan.order,
        activation.alpha,
        activation.limit,
        N=num_rows,
        K=width,
        TOP_K=top_k,
        INTERLEAVED=is_interleaved,
        KIND=activation.kind if is_gated else "",
        HAS_BIAS=bias is not None,
        BLOCK_N=config.block_n,
        BLOCK_M=config.block_m,
        BLOCK_K=config.block_k,
        USE_TMA=use_tma,
        num_warps=config.num_warps,
        num_stages=config.num_stages,
    )
