"""Tensors of a GGUF file under their Hugging Face names, dequantised and in its row order."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from octavo_engine.errors import CheckpointError
from octavo_engine.gguf.config import GGUFLayout
from octavo_engine.gguf.metadata import GGUFMetadata
from octavo_engine.gguf.rope import ROPE_FACTORS_TENSOR

if TYPE_CHECKING:
    import torch
    from gguf.gguf_reader import ReaderTensor

_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_HEADS_KEY = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}


def hf_name(gguf_name: str, path: str) -> str:
    if gguf_name in _TOP_NAMES:
        return _TOP_NAMES[gguf_name]
    parts = gguf_name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit() and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    raise CheckpointError(f"{path}: tensor {gguf_name!r} has no place in this architecture")


def hf_shapes(
    metadata: GGUFMetadata, tensors: "Sequence[ReaderTensor]"
) -> dict[str, tuple[int, ...]]:
    return {
        hf_name(tensor.name, metadata.path): tuple(map(int, reversed(tensor.shape.tolist())))
        for tensor in tensors
        if tensor.name != ROPE_FACTORS_TENSOR  # part of the config
    }


def hf_tensors(
    metadata: GGUFMetadata, layout: GGUFLayout, tensors: "Sequence[ReaderTensor]"
) -> "Iterator[tuple[str, torch.Tensor]]":
    for tensor in tensors:
        if tensor.name == ROPE_FACTORS_TENSOR:  # part of the config
            continue
        name = hf_name(tensor.name, metadata.path)
        weight = _to_torch(tensor, metadata.path)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if layout.permuted_rope and kind in _HEADS_KEY:
            weight = unpermute(weight, metadata.integer(metadata.arch_key(_HEADS_KEY[kind])))
        yield name, weight


def unpermute(weight: "torch.Tensor", num_heads: int) -> "torch.Tensor":
    """Rows [num_heads * head_dim, ...] from interleaved rotary pairs to the two-halves order."""
    half = weight.shape[0] // num_heads // 2
    paired = weight.reshape(num_heads, half, 2, *weight.shape[1:])
    return paired.transpose(1, 2).reshape(weight.shape)


def check_tensor_types(path: str, tensors: "Sequence[ReaderTensor]") -> None:
    """Refuses a type that cannot be dequantised before any memory is taken for weights."""
    from gguf.quants import dequantize

    for tensor in {tensor.tensor_type: tensor for tensor in tensors}.values():
        if tensor.tensor_type.name in ("F32", "F16"):
            continue
        try:
            dequantize(tensor.data.reshape(-1, tensor.data.shape[-1])[:1], tensor.tensor_type)
        except NotImplementedError as error:  # how gguf says that it cannot dequantise a type
            raise CheckpointError(
                f"{path}: tensor {tensor.name!r} has the type {tensor.tensor_type.name}, "
                "which cannot be dequantised"
            ) from error


def _to_torch(tensor: "ReaderTensor", path: str) -> "torch.Tensor":
    import torch
    from gguf.quants import dequantize

    shape = [int(size) for size in reversed(tensor.shape.tolist())]
    kind = tensor.tensor_type.name
    if kind in ("F32", "F16"):
        return torch.from_numpy(np.array(tensor.data)).reshape(shape)
    if kind == "BF16":
        raw: np.ndarray[Any, Any] = np.array(tensor.data).view(np.int16)
        return torch.from_numpy(raw).view(torch.bfloat16).reshape(shape)
    weight = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
    if weight.size != np.prod(shape):
        raise CheckpointError(
            f"{path}: tensor {tensor.name!r} has {weight.size} values, its shape {shape} needs more"
        )
    return torch.from_numpy(weight).reshape(shape)
