"""Writes GGUF files of tiny models as their converters do, so that reading them can be checked."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from octavo_engine.text.token_bytes import byte_level_alphabet

HIDDEN, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, FFN = 64, 4, 2, 16, 96
TOKENS = [*byte_level_alphabet(), "ab", "Ġa", "<|eos|>", "<|im|>"]
EOS_ID = len(TOKENS) - 2
ROWS = {
    "attn_q.weight": ("self_attn.q_proj.weight", (NUM_HEADS * HEAD_DIM, HIDDEN)),
    "attn_k.weight": ("self_attn.k_proj.weight", (NUM_KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_v.weight": ("self_attn.v_proj.weight", (NUM_KV_HEADS * HEAD_DIM, HIDDEN)),
    "attn_output.weight": ("self_attn.o_proj.weight", (HIDDEN, NUM_HEADS * HEAD_DIM)),
    "ffn_gate.weight": ("mlp.gate_proj.weight", (FFN, HIDDEN)),
    "ffn_up.weight": ("mlp.up_proj.weight", (FFN, HIDDEN)),
    "ffn_down.weight": ("mlp.down_proj.weight", (HIDDEN, FFN)),
    "attn_norm.weight": ("input_layernorm.weight", (HIDDEN,)),
    "ffn_norm.weight": ("post_attention_layernorm.weight", (HIDDEN,)),
}


def hf_weights(num_layers: int = 2, *, tied: bool = True) -> dict[str, torch.Tensor]:
    """Seeded weights under Hugging Face's names."""
    generator = torch.Generator().manual_seed(3)
    shapes = {"model.embed_tokens.weight": (len(TOKENS), HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (len(TOKENS), HIDDEN)
    for layer in range(num_layers):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in ROWS.values()}
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def interleave(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """What the converter does to q and k: row i of a head's two halves become rows 2i and 2i+1."""
    result = torch.empty_like(weight)
    head_dim = weight.shape[0] // num_heads
    for head in range(num_heads):
        for i in range(head_dim // 2):
            for half in range(2):
                source = head * head_dim + half * head_dim // 2 + i
                result[head * head_dim + 2 * i + half] = weight[source]
    return result


def write_gguf(
    path: Path,
    weights: dict[str, torch.Tensor],
    *,
    arch: str = "llama",
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    num_layers: int = 2,
    pre: str = "smollm",
    extra: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray[Any, Any]] | None = None,
) -> Path:
    writer = GGUFWriter(path, arch)
    writer.add_block_count(num_layers)
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token.startswith("<|") else 1 for token in TOKENS])
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_eos_token_id(EOS_ID)
    writer.add_bos_token_id(EOS_ID + 1)
    writer.add_chat_template("{% for m in messages %}<|im|>{{ m.content }}{% endfor %}")
    for key, value in (extra or {}).items():
        writer.add_key_value(key, value, _value_type(value))
    for name, weight in gguf_tensors(weights, arch, num_layers).items():
        data = weight.numpy()
        tensor_kind = kind if data.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quantize(data, tensor_kind), raw_dtype=tensor_kind)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_tensors(
    weights: dict[str, torch.Tensor], arch: str, num_layers: int
) -> dict[str, torch.Tensor]:
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    if "lm_head.weight" in weights:
        tensors["output.weight"] = weights["lm_head.weight"]
    for layer in range(num_layers):
        for gguf_name, (hf_name, _) in ROWS.items():
            tensors[f"blk.{layer}.{gguf_name}"] = weights[f"model.layers.{layer}.{hf_name}"]
        if arch == "llama":
            for name, heads in (("attn_q", NUM_HEADS), ("attn_k", NUM_KV_HEADS)):
                key = f"blk.{layer}.{name}.weight"
                tensors[key] = interleave(tensors[key], heads)
    return tensors


def _value_type(value: Any) -> Any:
    from gguf import GGUFValueType

    if isinstance(value, bool):
        return GGUFValueType.BOOL
    kinds = {int: GGUFValueType.UINT32, float: GGUFValueType.FLOAT32, str: GGUFValueType.STRING}
    return kinds[type(value)]
