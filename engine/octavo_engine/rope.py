"""Rotary position embeddings: what a config says of them. Knows no model and no tensor.

Numbers are those of the papers and of the implementations that checkpoints were trained with.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from octavo_engine.errors import CheckpointError

RopeKind = Literal["default", "linear", "dynamic", "llama3", "yarn", "longrope"]
KINDS: tuple[RopeKind, ...] = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """One kind of rotation; layers with equal configs share their tables."""

    kind: RopeKind
    theta: float
    rotary_dim: int
    """Leading dimensions of a head that rotate."""
    max_position_embeddings: int
    original_max_position_embeddings: int
    """Positions the model knew before its context was extended."""
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncates: bool = True
    attention_factor: float = 1.0
    """Multiplies cos and sin."""
    short_factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()

    @property
    def depends_on_length(self) -> bool:
        """Whether a sequence's length, not only a token's position, decides the rotation."""
        return self.kind in ("dynamic", "longrope")


def parse_rope(
    params: Mapping[str, Any],
    *,
    head_dim: int,
    max_position_embeddings: int,
    original_max_position_embeddings: int | None = None,
) -> RopeConfig:
    """From a config's `rope_parameters` of one layer kind. Raises CheckpointError with the key."""
    kind = params.get("rope_type") or params.get("type") or "default"
    if kind not in KINDS:
        raise CheckpointError(f"rope_type {kind!r} is not supported, only {', '.join(KINDS)}")
    original = (
        params.get("original_max_position_embeddings")
        or original_max_position_embeddings
        or max_position_embeddings
    )
    factor = params.get("factor")
    if factor is None:
        factor = max_position_embeddings / original if kind in ("yarn", "longrope") else 1.0
    rotary_dim = int(head_dim * params.get("partial_rotary_factor", 1.0))
    short, long = (tuple(params.get(key) or ()) for key in ("short_factor", "long_factor"))
    if kind == "longrope" and not len(short) == len(long) == rotary_dim // 2:
        raise CheckpointError(
            f"longrope needs {rotary_dim // 2} numbers in short_factor and long_factor, "
            f"found {len(short)} and {len(long)}"
        )
    return RopeConfig(
        kind=kind,
        theta=float(params["rope_theta"]),
        rotary_dim=rotary_dim,
        max_position_embeddings=max_position_embeddings,
        original_max_position_embeddings=int(original),
        factor=float(factor),
        low_freq_factor=float(params.get("low_freq_factor") or 1.0),
        high_freq_factor=float(params.get("high_freq_factor") or 4.0),
        beta_fast=float(params.get("beta_fast") or 32.0),
        beta_slow=float(params.get("beta_slow") or 1.0),
        truncates=bool(params.get("truncate", True)),
        attention_factor=_attention_factor(kind, params, float(factor), int(original)),
        short_factors=short,
        long_factors=long,
    )


def _attention_factor(
    kind: str, params: Mapping[str, Any], factor: float, original_len: int
) -> float:
    given = params.get("attention_factor")
    if given is not None and kind in ("yarn", "longrope"):
        return float(given)
    if factor <= 1.0:
        return 1.0
    if kind == "longrope":
        return math.sqrt(1.0 + math.log(factor) / math.log(original_len))
    if kind == "yarn":
        scale, scale_all = params.get("mscale"), params.get("mscale_all_dim")
        if scale and scale_all:
            return _yarn_magnitude(factor, scale) / _yarn_magnitude(factor, scale_all)
        return _yarn_magnitude(factor, 1.0)
    return 1.0


def _yarn_magnitude(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0


def extended_context_len(config: RopeConfig) -> int:
    """Tokens the model can hold: max_position_embeddings, or original x factor where that is more.

    Config files disagree on whether max_position_embeddings already counts the extension.
    """
    if config.kind in ("linear", "dynamic"):
        return int(config.max_position_embeddings * config.factor)
    if config.kind in ("yarn", "llama3", "longrope"):
        extended = int(config.original_max_position_embeddings * config.factor)
        return max(config.max_position_embeddings, extended)
    return config.max_position_embeddings
