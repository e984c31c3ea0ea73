"""Rotary embedding parameters of a GGUF file, in the form that `config.json` uses.

Llama 3's scaling is stored as its result, one factor a frequency; it is turned back into the
parameters it was made from, and refused when no parameters give these factors.
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo_engine.errors import CheckpointError
from octavo_engine.gguf.metadata import GGUFMetadata

if TYPE_CHECKING:
    from gguf.gguf_reader import ReaderTensor

ROPE_FACTORS_TENSOR = "rope_freqs.weight"

_LLAMA3_LOW_FREQ_FACTOR = 1.0
_LLAMA3_HIGH_FREQ_FACTOR = 4.0
_LLAMA3_ORIGINAL_CONTEXT = 8192


def rope_parameters(
    metadata: GGUFMetadata, factors: "ReaderTensor | None", head_dim: int
) -> dict[str, Any]:
    theta = metadata.number(metadata.arch_key("rope.freq_base"), 10000.0)
    if factors is not None:
        return _llama3_parameters(metadata, np.asarray(factors.data, np.float64), theta, head_dim)
    kind = metadata.text(metadata.arch_key("rope.scaling.type"), "none")
    if kind == "none":
        return {"rope_type": "default", "rope_theta": theta}
    factor = metadata.number(metadata.arch_key("rope.scaling.factor"))
    if kind == "linear":
        return {"rope_type": "linear", "rope_theta": theta, "factor": factor}
    if kind == "yarn":
        return {
            "rope_type": "yarn",
            "rope_theta": theta,
            "factor": factor,
            "original_max_position_embeddings": metadata.integer(
                metadata.arch_key("rope.scaling.original_context_length")
            ),
        }
    raise CheckpointError(f"{metadata.path}: rope scaling {kind!r} is not supported in GGUF")


def llama3_factors(theta: float, head_dim: int, factor: float) -> np.ndarray[Any, Any]:
    """What each of the head_dim/2 inverse frequencies is divided by; float64 [head_dim / 2]."""
    inv_freq = theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    wavelength = 2 * math.pi / inv_freq
    smooth = (_LLAMA3_ORIGINAL_CONTEXT / wavelength - _LLAMA3_LOW_FREQ_FACTOR) / (
        _LLAMA3_HIGH_FREQ_FACTOR - _LLAMA3_LOW_FREQ_FACTOR
    )
    smooth = np.clip(smooth, 0.0, 1.0)
    return np.asarray(1 / ((1 - smooth) / factor + smooth))


def _llama3_parameters(
    metadata: GGUFMetadata, factors: np.ndarray[Any, Any], theta: float, head_dim: int
) -> dict[str, Any]:
    factor = float(f"{factors.max():.6g}")
    expected = llama3_factors(theta, head_dim, factor)
    if expected.shape != factors.shape or not np.allclose(expected, factors, rtol=1e-4):
        raise CheckpointError(
            f"{metadata.path}: the factors in {ROPE_FACTORS_TENSOR} are not those of llama3 "
            f"scaling with factor {factor:g}"
        )
    return {
        "rope_type": "llama3",
        "rope_theta": theta,
        "factor": factor,
        "low_freq_factor": _LLAMA3_LOW_FREQ_FACTOR,
        "high_freq_factor": _LLAMA3_HIGH_FREQ_FACTOR,
        "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
    }
