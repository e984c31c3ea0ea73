"""How transformers' own modules reach our paged attention, where a family is not in the table.

Architectures that dispatch through the attention interface are given a function of our name. Those
that call torch's scaled_dot_product_attention themselves are intercepted there. Both end in a
`LayerAttention`, which first records what each layer asks for, then serves it from pages.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import octavo_kernels
from octavo_engine.errors import CheckpointError
from octavo_engine.layers.context import LayerCache, StepContext

INTERFACE_NAME = "octavo_paged"
HOLDER_NAME = "octavo_attention"


@dataclass(frozen=True)
class LayerFacts:
    """What one layer's attention was asked to do."""

    num_q_heads: int
    num_kv_heads: int
    head_dim: int
    window: int | None
    scale: float
    softcap: float | None


class LayerAttention:
    """Attention of all layers of one model; a step's context is set before the forward pass."""

    def __init__(self) -> None:
        self.facts: dict[int, LayerFacts] = {}
        """By layer; filled by the probe."""
        self._step: tuple[StepContext, list[LayerCache], Mapping[int, int]] | None = None

    def set_step(
        self, context: StepContext, caches: list[LayerCache], group_of: Mapping[int, int]
    ) -> None:
        self._step = (context, caches, group_of)

    def __call__(
        self,
        layer_id: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        scale: float | None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """q[1, Hq, T, D], k and v[1, Hkv, T, D] -> [1, T, Hq, D]."""
        scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
        if self._step is None:
            self.facts[layer_id] = _facts(layer_id, q, k, v, scale, window, softcap)
            return _probe_attention(q, k, v, scale).transpose(1, 2)
        context, caches, group_of = self._step
        group, cache = context.groups[group_of[layer_id]], caches[layer_id]
        q, k, v = (x[0].transpose(0, 1).contiguous() for x in (q, k, v))
        octavo_kernels.kv_write(k, v, cache.k, cache.v, group.slots, cache_rows=group.cache_rows)
        out = octavo_kernels.paged_attention(
            q,
            cache.k,
            cache.v,
            group.attention,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
        )
        return out.unsqueeze(0)


def _facts(
    layer_id: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scale: float,
    window: int | None,
    softcap: float | None,
) -> LayerFacts:
    if v.shape[-1] != k.shape[-1]:
        raise CheckpointError(
            f"layer {layer_id} has keys of {k.shape[-1]} dimensions and values of {v.shape[-1]}"
        )
    return LayerFacts(
        num_q_heads=q.shape[1],
        num_kv_heads=k.shape[1],
        head_dim=k.shape[-1],
        window=window,
        scale=scale,
        softcap=softcap,
    )


def _probe_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> torch.Tensor:
    """Plain causal attention of one short sequence."""
    is_grouped = q.shape[1] != k.shape[1]
    return functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, scale=scale, enable_gqa=is_grouped
    )


def register_interface() -> None:
    """Makes INTERFACE_NAME known to transformers; idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(INTERFACE_NAME, _interface)


def _interface(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """transformers' signature: query[1, Hq, T, D] -> [1, T, Hq, D]."""
    if attention_mask is not None or position_bias is not None:
        raise CheckpointError(f"{type(module).__name__} needs a mask or bias of its own")
    attention: LayerAttention = getattr(module, HOLDER_NAME)
    out = attention(
        int(module.layer_idx),
        query,
        key,
        value,
        scale=scaling,
        window=sliding_window,
        softcap=softcap,
        sinks=s_aux,
    )
    return out, None


class InterceptSdpa(TorchFunctionMode):
    """While it is entered, the n-th call of scaled_dot_product_attention is layer n's attention.

    Only for architectures whose attention is plainly causal: the mask they pass is not looked at.
    """

    def __init__(self, attention: LayerAttention) -> None:
        super().__init__()
        self._attention = attention
        self._next_layer = 0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func is not functional.scaled_dot_product_attention:
            return func(*args, **named)
        layer_id = self._next_layer
        self._next_layer += 1
        with torch._C.DisableTorchFunctionSubclass():
            return self._attention(layer_id, *args[:3], scale=named.get("scale")).transpose(1, 2)
