"""Scales of a quantised KV cache as checkpoints hold them, under the names of the tools in use.

Knows names and shapes; which pages they serve is the runner's affair.
"""

import re
from collections.abc import Mapping

import torch

from octavo_engine.errors import CheckpointError
from octavo_kernels import KVScales

NAME = re.compile(
    r"model\.layers\.(?P<layer>\d+)\.self_attn\."
    r"(?:(?:attn\.|k_proj\.)?(?P<k>k_scale)|(?:attn\.|v_proj\.)?(?P<v>v_scale)"
    r"|(?:attn\.)?(?P<kv>kv_scale)"
    r"|k_proj\.(?P<k_output>output_scale)|v_proj\.(?P<v_output>output_scale))"
)


def is_kv_scale(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def kv_scales(
    tensors: Mapping[str, torch.Tensor], num_kv_heads: int, heads: slice, device: torch.device
) -> dict[int, KVScales]:
    """By layer. tensors: those that `is_kv_scale` chose, each one number, or one for each of the
    model's num_kv_heads. heads: those wanted.

    Raises CheckpointError for keys without values, other shapes, and what no scale can be.
    """
    found: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        parsed = NAME.fullmatch(name)
        assert parsed is not None
        kinds = next(kind for kind, text in parsed.groupdict().items() if text and kind != "layer")
        scale = _one_a_head(name, tensor, num_kv_heads)[heads].to(device)
        for kind in kinds.removesuffix("_output"):
            found.setdefault(int(parsed["layer"]), {})[kind] = scale
    for layer_id, scales in found.items():
        if len(scales) == 1:
            (kind,) = scales
            raise CheckpointError(
                f"layer {layer_id} of the checkpoint has a scale for cached "
                f"{'keys but none for values' if kind == 'k' else 'values but none for keys'}"
            )
    return {layer_id: KVScales(scales["k"], scales["v"]) for layer_id, scales in found.items()}


def _one_a_head(name: str, tensor: torch.Tensor, num_kv_heads: int) -> torch.Tensor:
    if tensor.numel() not in (1, num_kv_heads):
        raise CheckpointError(
            f"tensor {name!r} has shape {list(tensor.shape)}: a scale is one number, or one for "
            f"each of {num_kv_heads} heads"
        )
    scale = tensor.float().reshape(-1)
    if not bool(((scale > 0) & scale.isfinite()).all()):
        raise CheckpointError(f"tensor {name!r} holds {scale.min():g}, which is no scale")
    return scale.expand(num_kv_heads).contiguous()
