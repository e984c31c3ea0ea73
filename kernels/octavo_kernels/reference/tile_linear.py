"""The product by a matrix unit, where there is none: float32 from the weight put back in order."""

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

POST_OPS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda y: y,
    "silu": functional.silu,
    "gelu_tanh": lambda y: functional.gelu(y, approximate="tanh"),
}


def tile_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    post_op: str,
    other: torch.Tensor | None,
) -> torch.Tensor:
    blocks, steps = weight.shape[:2]
    plain = weight.permute(0, 2, 4, 1, 3, 5).reshape(blocks * 32, steps * 32)
    y = functional.linear(x.float(), plain.float(), bias)
    y = POST_OPS[post_op](y) if other is None else y * other.float()
    return y.to(x.dtype)
