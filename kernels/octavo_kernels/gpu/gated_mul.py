"""act(gate) * up of a packed [T, 2I] projection, gate first."""

import torch
import triton
import triton.language as tl

from octavo_kernels.gpu.launch import overlap_options, wait_for_previous

BLOCK = 1024


@triton.jit
def _sigmoid(x):
    """Without an overflow on either side."""
    small = tl.exp(-tl.abs(x))
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def _gated_mul_kernel(
    gate_up,
    out,
    stride_token,
    WIDTH,
    GELU: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait_for_previous(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    source = gate_up + token * stride_token + column
    gate = tl.load(source, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(source + WIDTH, mask=inside, other=0.0).to(tl.float32)
    if GELU:
        # gelu's tanh formula: 0.5 * (1 + tanh(z)) is sigmoid(2 z).
        activated = gate * _sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    else:
        activated = gate * _sigmoid(gate)
    tl.store(out + token * WIDTH + column, (activated * up).to(out.dtype.element_ty), mask=inside)


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] with last stride 1 -> contiguous [T, I]."""
    return _gated_mul(gate_up, gelu=False)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up[T, 2I] with last stride 1 -> contiguous [T, I]."""
    return _gated_mul(gate_up, gelu=True)


def _gated_mul(gate_up: torch.Tensor, *, gelu: bool) -> torch.Tensor:
    if gate_up.dim() != 2 or gate_up.shape[1] % 2 or gate_up.stride(-1) != 1:
        raise ValueError(f"a gated product takes [T, 2I] with last stride 1, got {gate_up.shape}")
    num_tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(num_tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    if out.numel():
        grid = (num_tokens, triton.cdiv(width, BLOCK))
        _gated_mul_kernel[grid](
            gate_up,
            out,
            gate_up.stride(0),
            width,
            GELU=gelu,
            BLOCK=BLOCK,
            **overlap_options(gate_up.device),
        )
    return out
