"""Rotary position embeddings: frequencies of each scaling kind, and cos/sin tables by position.

Knows no model: a `RopeConfig` says everything. Formulas are those of the papers and of the
implementations that checkpoints were trained with; float32 throughout.
"""

import math

import torch

from octavo_engine.rope import RopeConfig


def inverse_frequencies(config: RopeConfig, seq_len: int | None = None) -> torch.Tensor:
    """[rotary_dim / 2] float32. seq_len matters to dynamic and longrope; None is short."""
    exponents = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32) / config.rotary_dim
    if config.kind == "dynamic":
        return 1.0 / _dynamic_theta(config, seq_len or 0) ** exponents
    frequencies = 1.0 / config.theta**exponents
    if config.kind == "linear":
        return frequencies / config.factor
    if config.kind == "llama3":
        return _llama3(config, frequencies)
    if config.kind == "yarn":
        return _yarn(config, exponents)
    if config.kind == "longrope":
        is_long = (seq_len or 0) > config.original_max_position_embeddings
        factors = config.long_factors if is_long else config.short_factors
        return 1.0 / (torch.tensor(factors, dtype=torch.float32) * config.theta**exponents)
    return frequencies


def _dynamic_theta(config: RopeConfig, seq_len: int) -> float:
    known_len = config.max_position_embeddings
    stretch = config.factor * max(seq_len, known_len) / known_len - (config.factor - 1.0)
    return float(config.theta * stretch ** (config.rotary_dim / (config.rotary_dim - 2)))


def _llama3(config: RopeConfig, frequencies: torch.Tensor) -> torch.Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    original_len = config.original_max_position_embeddings
    wavelengths = 2.0 * math.pi / frequencies
    blend = (original_len / wavelengths - config.low_freq_factor) / (
        config.high_freq_factor - config.low_freq_factor
    )
    blend = blend.clamp(0.0, 1.0)
    return (1.0 - blend) * frequencies / config.factor + blend * frequencies


def _yarn(config: RopeConfig, exponents: torch.Tensor) -> torch.Tensor:
    """Dimensions that turn often in the original context are kept, the slow ones stretched."""

    def dimension(num_turns: float) -> float:
        return (
            config.rotary_dim
            * math.log(config.original_max_position_embeddings / (num_turns * 2.0 * math.pi))
            / (2.0 * math.log(config.theta))
        )

    low, high = dimension(config.beta_fast), dimension(config.beta_slow)
    if config.truncates:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, config.rotary_dim - 1)
    if low == high:
        high += 0.001
    ramp = (torch.arange(config.rotary_dim // 2, dtype=torch.float32) - low) / (high - low)
    stretched_share = ramp.clamp(0.0, 1.0)
    powers = config.theta**exponents
    return stretched_share / (config.factor * powers) + (1.0 - stretched_share) / powers


def cos_sin(
    config: RopeConfig, positions: torch.Tensor, seq_len: int | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """positions[P] -> cos and sin [P, rotary_dim / 2] float32, attention factor folded in."""
    angles = positions.to(torch.float32)[:, None] * inverse_frequencies(config, seq_len)[None, :]
    return angles.cos() * config.attention_factor, angles.sin() * config.attention_factor
