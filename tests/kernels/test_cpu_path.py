"""On a CPU the public ops run their references and never load triton."""

import subprocess
import sys

import pytest
import torch

import octavo_kernels
from octavo_kernels import ops

SCRIPT = """
import sys
import torch
import octavo_kernels as kernels

x = torch.randn(2, 8)
y, total = kernels.rms_norm(x, torch.ones(8), 1e-5, residual=x)
assert torch.equal(total, 2 * x)
kernels.silu_mul(x)
kernels.gelu_tanh_mul(x)
q, k = torch.randn(2, 4, 8), torch.randn(2, 2, 8)
table = torch.zeros(3, 4)
slots = torch.tensor([1, -1])
k_cache, v_cache = torch.zeros(2, 1, 2, 16, 8)
kernels.apply_rope(q, k, table + 1, table, slots.abs())
kernels.kv_write(k, k, k_cache, v_cache, slots)
norm = (torch.ones(8), torch.ones(8))
kernels.rope_kv_write(
    q, k, k, table + 1, table, slots.abs(), k_cache, v_cache, slots, qk_norm=norm, eps=1e-6
)
assert torch.equal(v_cache[0, :, 1], k[0])
assert "triton" not in sys.modules, "a CPU-only process has loaded triton"
"""


def test_ops_run_without_triton() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", octavo_kernels.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert getattr(octavo_kernels, name).__doc__


def test_the_fused_op_is_its_parts() -> None:
    cpu = torch.Generator().manual_seed(7)
    q, k, v = torch.randn(2, 4, 8, generator=cpu), *torch.randn(2, 2, 2, 8, generator=cpu)
    weights = torch.randn(2, 8, generator=cpu)
    angles = torch.randn(5, 4, generator=cpu)
    positions, slots = torch.tensor([4, 2]), torch.tensor([3, 17])
    caches = torch.zeros(4, 2, 2, 16, 8)
    normed_q, normed_k = ops.rms_norm(q, weights[0], 1e-6), ops.rms_norm(k, weights[1], 1e-6)
    ops.apply_rope(normed_q, normed_k, angles.cos(), angles.sin(), positions)
    ops.kv_write(normed_k, v, caches[0], caches[1], slots)
    ops.rope_kv_write(
        q, k, v, angles.cos(), angles.sin(), positions, caches[2], caches[3], slots,
        qk_norm=(weights[0], weights[1]), eps=1e-6,
    )  # fmt: skip
    assert torch.equal(q, normed_q)
    assert torch.equal(caches[:2], caches[2:])
