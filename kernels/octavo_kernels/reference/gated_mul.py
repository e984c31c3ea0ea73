"""act(gate) * up of a packed [T, 2I] projection, gate first."""

import torch
from torch.nn import functional


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (functional.silu(gate.float()) * up.float()).to(gate_up.dtype)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return (functional.gelu(gate.float(), approximate="tanh") * up.float()).to(gate_up.dtype)
