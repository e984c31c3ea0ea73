"""act(gate) * up of a packed [T, 2I] projection, gate first."""

from collections.abc import Callable

import torch
from torch.nn import functional

CHUNK_ROWS = 64
"""Rows at once: float32 copies of a whole prefill step leave the cache, 6 times slower."""


def silu_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return _gated(gate_up, functional.silu)


def gelu_tanh_mul(gate_up: torch.Tensor) -> torch.Tensor:
    return _gated(gate_up, lambda gate: functional.gelu(gate, approximate="tanh"))


def _gated(gate_up: torch.Tensor, activate: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    if gate_up.dim() != 2 or gate_up.shape[0] <= CHUNK_ROWS:
        return activate(gate.float()).mul_(up).to(gate_up.dtype)
    out = torch.empty_like(gate, memory_format=torch.contiguous_format)
    parts = (torch.split(tensor, CHUNK_ROWS) for tensor in (gate, up, out))
    for gate_rows, up_rows, out_rows in zip(*parts, strict=True):
        out_rows.copy_(activate(gate_rows.float()).mul_(up_rows))
    return out
