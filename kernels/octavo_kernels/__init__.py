"""Triton kernels, each with a plain PyTorch reference that is the oracle and the CPU path.

`ops` holds the public functions, `reference` their plain versions, `gpu` the kernels.
"""

from octavo_kernels.logit_changes import ANY_TOKEN, ForbiddenEndings, LogitChanges
from octavo_kernels.metadata import AttentionMetadata, KVScales, SamplingTensors
from octavo_kernels.ops import (
    apply_rope,
    compile_ahead,
    gelu_tanh_mul,
    kv_write,
    leaves_a_token,
    paged_attention,
    plan_kv_write,
    prepare_attention,
    release_threads,
    rms_norm,
    rms_norm_into,
    rope_kv_write,
    sample,
    silu_mul,
)

__all__ = [
    "ANY_TOKEN",
    "AttentionMetadata",
    "ForbiddenEndings",
    "KVScales",
    "LogitChanges",
    "SamplingTensors",
    "apply_rope",
    "compile_ahead",
    "gelu_tanh_mul",
    "kv_write",
    "leaves_a_token",
    "paged_attention",
    "plan_kv_write",
    "prepare_attention",
    "release_threads",
    "rms_norm",
    "rms_norm_into",
    "rope_kv_write",
    "sample",
    "silu_mul",
]
