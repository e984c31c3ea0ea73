"""Reads a checkpoint's config and refuses what would change the mathematics unnoticed.

Knows files and transformers' config classes; knows no tensors.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

from octavo_engine.errors import CheckpointError

log = structlog.get_logger(__name__)

# Entries that our layers read and only some families have: elsewhere transformers ignores what we
# would apply.
FAMILY_KEYS = frozenset(
    [
        "attention_bias",
        "attention_multiplier",
        "attention_out_bias",
        "attn_logit_softcapping",
        "decoder_sparse_step",
        "embedding_multiplier",
        "final_logit_softcapping",
        "hidden_activation",
        "layer_types",
        "logits_scaling",
        "mlp_bias",
        "mlp_only_layers",
        "no_rope_layer_interval",
        "no_rope_layers",
        "query_pre_attn_scalar",
        "residual_multiplier",
        "sliding_window",
        "swiglu_alpha",
        "swiglu_limit",
    ]
)
# Entries that our layers read, for any family.
READ_KEYS = FAMILY_KEYS | frozenset(
    [
        "activation",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "max_window_layers",
        "model_type",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_attention_heads",
        "num_experts",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_local_experts",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rms_norm_eps",
        "rope_local_base_freq",
        "rope_parameters",
        "rope_scaling",
        "rope_theta",
        "sliding_window_pattern",
        "tie_word_embeddings",
        "use_sliding_window",
        "vocab_size",
        "quantization_config",
        "compression_config",
        "experts_per_token",
        "initial_context_length",
    ]
)
# Entries about training, the tokenizer or bookkeeping, never about the forward pass.
NEUTRAL_KEYS = frozenset(
    [
        "architectures",
        "attention_dropout",
        "auto_map",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "embd_pdrop",
        "eos_token_id",
        "hidden_dropout",
        "id2label",
        "initializer_range",
        "is_decoder",
        "is_encoder_decoder",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "residual_dropout",
        "resid_pdrop",
        "return_dict",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "tokenizer_class",
        "torch_dtype",
        "transformers_version",
        "unk_token_id",
        "use_cache",
        "z_loss_coefficient",
        "cache_implementation",
    ]
)
# Words in the name of an entry that we do not know which make it too dangerous to ignore.
MATHEMATICAL_WORDS = [
    "activation",
    "alibi",
    "attention",
    "attn",
    "bias",
    "bidirectional",
    "cap",
    "conv",
    "expert",
    "gate",
    "head",
    "hidden",
    "layer",
    "logit",
    "mlp",
    "moe",
    "mult",
    "norm",
    "position",
    "residual",
    "rope",
    "rotary",
    "router",
    "scal",
    "sink",
    "sparse",
    "window",
]


def read_config(folder: Path) -> dict[str, Any]:
    """The raw config.json. Raises CheckpointError naming the file."""
    path = folder / "config.json"
    raw = _read_json(path)
    if not isinstance(raw.get("model_type"), str):
        raise CheckpointError(f"{path} names no model_type")
    return raw


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(raw, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return raw


def parse_config(raw: Mapping[str, Any], name: str) -> Any:
    """A transformers config from the raw entries; `name` is the file for messages."""
    from transformers import AutoConfig

    entries = dict(raw)
    model_type = entries.pop("model_type")
    try:
        return AutoConfig.for_model(model_type, **entries)
    except (
        Exception
    ) as error:  # transformers raises many kinds; all mean that the config is unusable
        raise CheckpointError(f"{name}: model_type {model_type!r}: {error}") from error


def check_known_entries(raw: Mapping[str, Any], name: str) -> None:
    """Refuses entries that we do not read although their name says that they change the result.

    An entry that is null, false or empty changes nothing. Other unknown entries are logged.
    """
    for key, value in raw.items():
        if key in READ_KEYS or key in NEUTRAL_KEYS or key.startswith("_") or _is_off(value):
            continue
        if any(word in key.lower() for word in MATHEMATICAL_WORDS):
            raise _unsupported(raw, key, name)
        log.warning("config_entry_ignored", file=name, entry=key, value=value)


def check_family_entries(raw: Mapping[str, Any], config: Any, name: str) -> None:
    """Refuses entries that transformers' class of the config has no notion of, other families' do.

    Layers that all see everything are what every family has.
    """
    own = type(config)()
    for key in sorted(FAMILY_KEYS & raw.keys()):
        value = raw[key]
        if hasattr(own, key) or _is_off(value):
            continue
        if key != "layer_types" or set(value) != {"full_attention"}:
            raise _unsupported(raw, key, name)


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in ([], {}, "")


def _unsupported(raw: Mapping[str, Any], key: str, name: str) -> CheckpointError:
    return CheckpointError(
        f"{name}: entry {key!r} = {raw[key]!r} is not supported for model_type "
        f"{raw['model_type']!r}: it may change what the model computes"
    )


QUANTIZATION_FILES: Mapping[str, str] = {
    "quantize_config.json": "gptq",
    "quant_config.json": "awq",
}
"""What older tools wrote beside config.json, to the method that the file does not name."""


def read_quantization(folder: Path, raw: Mapping[str, Any]) -> tuple[dict[str, Any], str] | None:
    """The quantization_config and the file it is from; None for an unquantised checkpoint."""
    for key in ("quantization_config", "compression_config"):
        if (entry := raw.get(key)) and not isinstance(entry, dict):
            raise CheckpointError(f"{folder / 'config.json'}: {key} {entry!r} is not an object")
        if entry:
            return entry, str(folder / "config.json")
    for file_name, method in QUANTIZATION_FILES.items():
        if (folder / file_name).exists():
            return {"quant_method": method, **_read_json(folder / file_name)}, file_name
    return None
