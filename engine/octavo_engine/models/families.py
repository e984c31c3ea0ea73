"""The table of model families: how each reads a Hugging Face config into a `ModelConfig`.

A family is the Llama decoder with the differences named here; the layers themselves are shared.
Knows no tensors. A new family is a new entry of FAMILIES and a parity test.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo_engine.errors import CheckpointError
from octavo_engine.model_config import (
    Activation,
    BlockNorms,
    LayerConfig,
    ModelConfig,
    MoeConfig,
    QKNorm,
)
from octavo_engine.rope import RopeConfig, parse_rope

INPUT_NORMS = BlockNorms()
SANDWICH_NORMS = BlockNorms(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
GLM4_NORMS = BlockNorms(
    after_attention="post_self_attn_layernorm",
    before_mlp="post_attention_layernorm",
    after_mlp="post_mlp_layernorm",
)
OUTPUT_NORMS = BlockNorms(
    before_attention=None,
    after_attention="post_attention_layernorm",
    before_mlp=None,
    after_mlp="post_feedforward_layernorm",
)
ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}


@dataclass(frozen=True, kw_only=True)
class Family:
    """What differs from Llama. A `*_key` names the config's entry that decides."""

    norms: BlockNorms = INPUT_NORMS
    norm_weight_offset: float = 0.0
    qk_norm: QKNorm = "none"
    qkv_bias: bool | None = None
    """None: the config's `attention_bias`."""
    output_bias_key: str | None = "attention_bias"
    """None: never a bias."""
    has_packed_qkv: bool = False
    has_packed_gate_up: bool = False
    has_sinks: bool = False
    is_rope_interleaved: bool = False
    activation: Activation | None = None
    """None: the config's `hidden_act` or `hidden_activation`."""
    scales_embedding: bool = False
    """By the square root of the hidden size, as rounded to the model's dtype."""
    moe_layout: str | None = None
    window_flag: str | None = None
    """A config entry that must be true for `sliding_window` to count."""
    rotates_partly: bool = False
    """Whether `partial_rotary_factor` counts."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False, output_bias_key=None),
    "qwen2": Family(qkv_bias=True, output_bias_key=None, window_flag="use_sliding_window"),
    "qwen3": Family(qk_norm="head", window_flag="use_sliding_window"),
    "qwen3_moe": Family(qk_norm="head", moe_layout="per_expert", window_flag="use_sliding_window"),
    "mixtral": Family(qkv_bias=False, output_bias_key=None, moe_layout="mixtral"),
    "gemma2": Family(norms=SANDWICH_NORMS, norm_weight_offset=1.0, scales_embedding=True),
    "gemma3_text": Family(
        norms=SANDWICH_NORMS, norm_weight_offset=1.0, scales_embedding=True, qk_norm="head"
    ),
    "phi3": Family(
        qkv_bias=False,
        output_bias_key=None,
        has_packed_qkv=True,
        has_packed_gate_up=True,
        rotates_partly=True,
    ),
    "glm4": Family(
        norms=GLM4_NORMS,
        output_bias_key=None,
        has_packed_gate_up=True,
        is_rope_interleaved=True,
        rotates_partly=True,
    ),
    "smollm3": Family(window_flag="use_sliding_window"),
    "olmo2": Family(norms=OUTPUT_NORMS, qk_norm="projection"),
    "olmo3": Family(norms=OUTPUT_NORMS, qk_norm="projection"),
    "granite": Family(),
    "seed_oss": Family(output_bias_key="attention_out_bias"),
    "gpt_oss": Family(has_sinks=True, activation="clamped_swiglu", moe_layout="interleaved"),
}


def build_model_config(config: Any) -> ModelConfig:
    """From a transformers config. Raises CheckpointError with the entry at fault."""
    family = FAMILIES[config.model_type]
    num_heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    attention_bias = bool(getattr(config, "attention_bias", False))
    activation = family.activation or _activation(config)
    output_bias_key = family.output_bias_key
    return ModelConfig(
        model_type=config.model_type,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_heads=num_heads,
        num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
        head_dim=head_dim,
        max_position_embeddings=config.max_position_embeddings,
        checkpoint_dtype=str(config.dtype).removeprefix("torch.") if config.dtype else "float32",
        tie_word_embeddings=bool(config.tie_word_embeddings),
        norms=family.norms,
        norm_eps=config.rms_norm_eps,
        norm_weight_offset=family.norm_weight_offset,
        qk_norm=family.qk_norm,
        activation=activation,
        swiglu_alpha=getattr(config, "swiglu_alpha", 1.702) if family.has_sinks else None,
        swiglu_limit=getattr(config, "swiglu_limit", 7.0) if family.has_sinks else None,
        has_qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        has_output_bias=bool(output_bias_key and getattr(config, output_bias_key, False)),
        has_mlp_bias=bool(getattr(config, "mlp_bias", False)),
        has_packed_qkv=family.has_packed_qkv,
        has_packed_gate_up=family.has_packed_gate_up,
        has_sinks=family.has_sinks,
        is_rope_interleaved=family.is_rope_interleaved,
        attention_scale=_attention_scale(config, head_dim),
        attention_softcap=getattr(config, "attn_logit_softcapping", None),
        final_softcap=getattr(config, "final_logit_softcapping", None),
        embedding_scale=_embedding_scale(config, family),
        residual_scale=getattr(config, "residual_multiplier", 1.0),
        logits_divisor=getattr(config, "logits_scaling", 1.0),
        layers=_layers(config, family, head_dim),
        moe=_moe(config, family),
    )


def _activation(config: Any) -> Activation:
    name = getattr(config, "hidden_activation", None) or config.hidden_act
    if name not in ACTIVATIONS:
        raise CheckpointError(
            f"activation {name!r} of a {config.model_type} model is not supported, "
            f"only {', '.join(ACTIVATIONS)}"
        )
    return ACTIVATIONS[name]


def _attention_scale(config: Any, head_dim: int) -> float:
    if (multiplier := getattr(config, "attention_multiplier", None)) is not None:
        return float(multiplier)
    return float((getattr(config, "query_pre_attn_scalar", None) or head_dim) ** -0.5)


def _embedding_scale(config: Any, family: Family) -> float:
    if family.scales_embedding:
        return float(config.hidden_size**0.5)
    return float(getattr(config, "embedding_multiplier", 1.0))


def _layers(config: Any, family: Family, head_dim: int) -> tuple[LayerConfig, ...]:
    num_layers = config.num_hidden_layers
    types = getattr(config, "layer_types", None) or _uniform_types(config, family)
    if len(types) != num_layers:
        raise CheckpointError(f"layer_types has {len(types)} entries for {num_layers} layers")
    ropes = {kind: _rope(config, family, kind, head_dim) for kind in sorted(set(types))}
    rotates = getattr(config, "no_rope_layers", None) or [1] * num_layers
    dense = set(getattr(config, "mlp_only_layers", None) or [])
    moe_step = getattr(config, "decoder_sparse_step", 1)
    return tuple(
        LayerConfig(
            window=_window(config, kind),
            rope=ropes[kind] if rotates[layer_id] else None,
            is_moe=family.moe_layout is not None
            and layer_id not in dense
            and (layer_id + 1) % moe_step == 0,
        )
        for layer_id, kind in enumerate(types)
    )


def _uniform_types(config: Any, family: Family) -> list[str]:
    counts = family.window_flag is None or getattr(config, family.window_flag, False)
    has_window = getattr(config, "sliding_window", None) is not None and counts
    kind = "sliding_attention" if has_window else "full_attention"
    return [kind] * int(config.num_hidden_layers)


def _window(config: Any, kind: str) -> int | None:
    if kind == "full_attention":
        return None
    if kind != "sliding_attention":
        raise CheckpointError(f"layer type {kind!r} is not supported")
    if not config.sliding_window:
        raise CheckpointError("layer_types has sliding_attention, but sliding_window is not set")
    return int(config.sliding_window)


def _rope(config: Any, family: Family, kind: str, head_dim: int) -> RopeConfig:
    params = config.rope_parameters
    if kind in params:
        params = params[kind]
    factor = params.get("partial_rotary_factor", 1.0)
    if factor != 1.0 and not family.rotates_partly:
        raise CheckpointError(
            f"partial_rotary_factor {factor!r} is not supported for model_type "
            f"{config.model_type!r}"
        )
    return parse_rope(
        params,
        head_dim=head_dim,
        max_position_embeddings=config.max_position_embeddings,
        original_max_position_embeddings=getattr(config, "original_max_position_embeddings", None),
    )


def _moe(config: Any, family: Family) -> MoeConfig | None:
    layout = family.moe_layout
    if layout is None:
        return None
    num_experts = getattr(config, "num_experts", None) or config.num_local_experts
    common = {
        "num_experts": num_experts,
        "num_experts_per_token": config.num_experts_per_tok,
    }
    if layout == "per_expert":
        return MoeConfig(
            **common,
            intermediate_size=config.moe_intermediate_size,
            router="softmax_then_top_k",
            normalizes_top_k=bool(config.norm_topk_prob),
            keeps_float_weights=False,
            layout="per_expert",
        )
    if layout == "mixtral":
        return MoeConfig(
            **common,
            intermediate_size=config.intermediate_size,
            router="softmax_then_top_k",
            normalizes_top_k=True,
            keeps_float_weights=True,
            layout="mixtral",
        )
    return MoeConfig(
        **common,
        intermediate_size=config.intermediate_size,
        router="top_k_then_softmax",
        normalizes_top_k=False,
        keeps_float_weights=False,
        layout="interleaved",
    )
