"""Where checkpoint tensors go. Layers make slots; the loader checks and fills them.

Knows neither files nor models.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from octavo_engine.quantization.matrix import QuantizedMatrix

FLOAT_DTYPES = ("F16", "BF16", "F32", "F64")
"""By safetensors' names."""


@dataclass(frozen=True)
class Slot:
    """One tensor that the checkpoint must hold, and how it gets into its place."""

    name: str
    """In the checkpoint."""
    shape: tuple[int, ...]
    """In the checkpoint."""
    write: Callable[[torch.Tensor], None]
    """Copies the tensor into the layer's memory, converting dtype, device and layout."""
    dtypes: tuple[str, ...] = FLOAT_DTYPES
    """In the checkpoint, any of these: a number of another kind means something else."""
    is_matrix: bool = False
    """Whether this is a product's weight [out, in], which a checkpoint may hold quantised."""
    is_experts: bool = False
    """Whether this holds the weights [E, in, out] of all experts, which may be quantised too."""
    write_quantized: Callable[["QuantizedMatrix"], None] | None = None
    """Instead of `write`, where the layer keeps a quantised matrix as it is."""


def copy_into(target: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def write(source: torch.Tensor) -> None:
        target.copy_(source)

    return write
