"""What the layers need of a step beside the hidden states. Made by `inputs`; knows no request."""

from dataclasses import dataclass

import torch

from octavo_kernels import AttentionMetadata, KVScales


@dataclass(frozen=True)
class LayerCache:
    """Pages of one layer."""

    k: torch.Tensor
    """[num_blocks, num_kv_heads, block_size, head_dim]."""
    v: torch.Tensor
    scales: KVScales | None = None
    """Of pages in e4m3."""


@dataclass(frozen=True)
class GroupStep:
    """One step as the layers of one KV group see it."""

    attention: AttentionMetadata
    slots: torch.Tensor
    """[T] int64: where each token's key and value go."""
    cache_rows: torch.Tensor | None = None
    """`octavo_kernels.plan_kv_write` of the slots, where the device makes use of it."""


@dataclass(frozen=True)
class RopeStep:
    """cos and sin tables and each token's row in them."""

    cos: torch.Tensor
    sin: torch.Tensor
    positions: torch.Tensor
    """[T] int64."""


@dataclass(frozen=True)
class WantedTokens:
    """The tokens of a step whose hidden states are used: of the others the last layer makes keys
    and values alone."""

    tokens: torch.Tensor
    """[R] int64: which of the step's T tokens; each the last of its row. Surplus ones stand
    last."""
    attention: AttentionMetadata | None
    """Each of them as a decode row of the last layer's KV group; None where R is 0."""


@dataclass(frozen=True)
class StepContext:
    groups: tuple[GroupStep, ...]
    ropes: tuple[RopeStep, ...]
    """One for each different RopeConfig of the model, in the model's order."""
    wanted: WantedTokens | None = None
    """None: all tokens."""
