"""From the header of a GGUF file to the dictionary that `config.json` would hold.

One table says what differs between architectures; an architecture without a row is refused by name.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from octavo_engine.errors import CheckpointError
from octavo_engine.gguf.metadata import GGUFMetadata
from octavo_engine.gguf.rope import ROPE_FACTORS_TENSOR, rope_parameters

if TYPE_CHECKING:
    from gguf.gguf_reader import ReaderTensor


class GGUFLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How one GGUF architecture is laid out and what Hugging Face calls it."""

    model_type: str
    class_name: str
    permuted_rope: bool
    """Rows of q and k are stored for an interleaved rotary embedding and must be put back."""
    extra_config: dict[str, Any] = {}


LAYOUTS: dict[str, GGUFLayout] = {
    "llama": GGUFLayout(
        model_type="llama",
        class_name="LlamaForCausalLM",
        permuted_rope=True,
        extra_config={"attention_bias": False, "mlp_bias": False},
    ),
    "qwen2": GGUFLayout(
        model_type="qwen2",
        class_name="Qwen2ForCausalLM",
        permuted_rope=False,
        extra_config={"use_sliding_window": False},
    ),
    "qwen3": GGUFLayout(
        model_type="qwen3",
        class_name="Qwen3ForCausalLM",
        permuted_rope=False,
        extra_config={"attention_bias": False, "use_sliding_window": False},
    ),
}

# GGUF's types of unquantised tensors. A quantised file holds about 4 to 8 bits of precision, which
# bfloat16 keeps.
_CONFIG_DTYPE = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}


def layout_of(metadata: GGUFMetadata) -> GGUFLayout:
    architecture = metadata.architecture
    layout = LAYOUTS.get(architecture)
    if layout is None:
        raise CheckpointError(
            f"{metadata.path}: GGUF architecture {architecture!r} is not supported, "
            f"only {', '.join(sorted(LAYOUTS))}"
        )
    num_experts_key = metadata.arch_key("expert_count")
    if metadata.integer(num_experts_key, 0) > 0:
        raise CheckpointError(
            f"{metadata.path}: a mixture of experts ({num_experts_key} > 0) in GGUF "
            "is not supported"
        )
    return layout


def hf_config(
    metadata: GGUFMetadata, layout: GGUFLayout, tensors: "Sequence[ReaderTensor]"
) -> dict[str, Any]:
    by_name = {tensor.name: tensor for tensor in tensors}
    num_heads = metadata.integer(metadata.arch_key("attention.head_count"))
    hidden_size = metadata.integer(metadata.arch_key("embedding_length"))
    head_dim = _head_dim(metadata, hidden_size, num_heads)
    config: dict[str, Any] = {
        "architectures": [layout.class_name],
        "model_type": layout.model_type,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "intermediate_size": metadata.integer(metadata.arch_key("feed_forward_length")),
        "max_position_embeddings": metadata.integer(metadata.arch_key("context_length")),
        "num_attention_heads": num_heads,
        "num_hidden_layers": metadata.integer(metadata.arch_key("block_count")),
        "num_key_value_heads": metadata.integer(
            metadata.arch_key("attention.head_count_kv"), num_heads
        ),
        "head_dim": head_dim,
        "rms_norm_eps": metadata.number(metadata.arch_key("attention.layer_norm_rms_epsilon")),
        "rope_parameters": rope_parameters(metadata, by_name.get(ROPE_FACTORS_TENSOR), head_dim),
        "tie_word_embeddings": "output.weight" not in by_name,
        "dtype": _dtype(by_name["token_embd.weight"]) if "token_embd.weight" in by_name else None,
        "vocab_size": len(metadata.texts("tokenizer.ggml.tokens")),
        **layout.extra_config,
    }
    return config | hf_generation_config(metadata)


def hf_generation_config(metadata: GGUFMetadata) -> dict[str, Any]:
    special = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {}
    for name, key in special.items():
        if metadata.has(f"tokenizer.ggml.{key}_token_id"):
            ids[f"{name}_token_id"] = metadata.integer(f"tokenizer.ggml.{key}_token_id")
    return ids


def _head_dim(metadata: GGUFMetadata, hidden_size: int, num_heads: int) -> int:
    head_dim = metadata.integer(metadata.arch_key("attention.key_length"), hidden_size // num_heads)
    rotary_dim = metadata.integer(metadata.arch_key("rope.dimension_count"), head_dim)
    if rotary_dim != head_dim:
        raise CheckpointError(
            f"{metadata.path}: rotary embedding of {rotary_dim} of {head_dim} dimensions "
            f"is not supported for {metadata.architecture} in GGUF"
        )
    return head_dim


def _dtype(embedding: "ReaderTensor") -> str:
    return _CONFIG_DTYPE.get(embedding.tensor_type.name, "bfloat16")
