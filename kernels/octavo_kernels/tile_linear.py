"""Products in bfloat16 by a CPU's matrix unit, from weights in its own order.

A step of 16 rows takes between a half and four fifths of the time that it takes by oneDNN, the less
the more others use the memory: the weight is read in one go and fetched ahead.
"""

import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

import torch

if TYPE_CHECKING:
    from octavo_kernels.cpu.parallel import Kernel, ThreadPool
    from octavo_kernels.cpu.tiles import Pinned

GateActivation = Literal["silu", "gelu_tanh"]


def can_tile(weight: torch.Tensor) -> bool:
    """Whether `tile_linear` is fast with this weight [N, K]: the machine has such a unit, numba is
    installed, the shape fits."""
    if not weight.is_cpu or weight.dtype != torch.bfloat16:
        return False
    num_rows, size = weight.shape
    return num_rows > 0 and num_rows % 32 == 0 and size % 32 == 0 and _compiled() is not None


def pack_tiles(weight: torch.Tensor) -> torch.Tensor:
    """weight[N, K] -> the same numbers as [N / 32, K / 32, 2, 16, 16, 2]: blocks of 32 rows, in
    each 32 columns at a time, two tiles of 16 rows, pair by pair of columns."""
    num_rows, size = weight.shape
    tiles = weight.view(num_rows // 32, 2, 16, size // 32, 16, 2)
    return tiles.permute(0, 3, 1, 4, 2, 5).contiguous()


def tile_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """x[T, K] @ W[N, K].T + bias[N] -> [T, N] bfloat16, rounded once.

    weight: `pack_tiles(W)`. bias: float32.
    """
    _refuse_misfit(x, weight)
    if _compiled() is None:
        from octavo_kernels.reference.tile_linear import tile_linear as reference

        return reference(x, weight, bias)
    return _multiply(x, weight, bias, (0, 0, 0))


def tile_gated(
    x: torch.Tensor,
    gate: torch.Tensor,
    up: torch.Tensor,
    gate_bias: torch.Tensor | None = None,
    up_bias: torch.Tensor | None = None,
    *,
    activation: GateActivation,
) -> torch.Tensor:
    """activation(x @ gate.T + gate_bias) * (x @ up.T + up_bias) -> [T, N] bfloat16, rounded once.

    gate, up: `pack_tiles` of [N, K] both.
    """
    _refuse_misfit(x, gate)
    if gate.shape != up.shape:
        raise ValueError(f"tile_gated: gate {tuple(gate.shape)} and up {tuple(up.shape)} differ")
    if _compiled() is None:
        from octavo_kernels.reference.tile_linear import tile_gated as reference

        return reference(x, gate, up, gate_bias, up_bias, activation)
    number = 1 + _ACTIVATIONS.index(activation)
    return _multiply(x, gate, gate_bias, (up.data_ptr(), _address(up_bias), number))


_ACTIVATIONS: tuple[GateActivation, ...] = ("silu", "gelu_tanh")
"""In the order of the kernel's numbers, from 1 on."""


def _refuse_misfit(x: torch.Tensor, weight: torch.Tensor) -> None:
    if x.dtype != torch.bfloat16 or x.shape[1] != weight.shape[1] * 32:
        raise ValueError(
            f"tile_linear cannot multiply {x.dtype} {tuple(x.shape)} by a weight of "
            f"{weight.shape[0] * 32} rows of {weight.shape[1] * 32}"
        )


def _multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    gated: tuple[int, int, int],
) -> torch.Tensor:
    compiled = _compiled()
    assert compiled is not None
    pool, kernel = compiled
    num_tokens, size = x.shape
    num_columns = weight.shape[0] * 32
    x = x if x.stride(1) == 1 else x.contiguous()
    y = x.new_empty((num_tokens, num_columns))
    # Held until the kernel is through: a cache that two threads fill at once keeps one of both.
    configurations = _configurations(num_tokens % 32)
    words = (
        num_tokens, num_columns, size, x.data_ptr(), 2 * x.stride(0), weight.data_ptr(),
        _address(bias), y.data_ptr(), configurations.address, *gated,
    )  # fmt: skip
    pool.run(kernel, words, torch.get_num_threads())
    return y


def _address(x: torch.Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


@functools.cache
def _compiled() -> "tuple[ThreadPool, Kernel] | None":
    if find_spec("numba") is None:
        return None
    from octavo_kernels.cpu.run import compiled
    from octavo_kernels.cpu.tiles import has_tiles

    others = compiled()
    if others is None or not has_tiles():
        return None
    from octavo_kernels.cpu.parallel import Kernel
    from octavo_kernels.cpu.tile_product import tile_product

    return others.pool, Kernel(tile_product)


@functools.cache
def _configurations(num_left: int) -> "Pinned":
    """Of the matrix unit for whole groups of 32 rows, and for those left."""
    import numpy as np

    from octavo_kernels.cpu.tiles import Pinned, configuration

    above = min(num_left, 16)
    return Pinned(np.concatenate([configuration(16, 16), configuration(above, num_left - above)]))
