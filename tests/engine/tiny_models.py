"""Tiny seeded checkpoints of every family, saved by transformers, and its own tokens for them."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 128
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
TWO_KINDS = ["sliding_attention", "full_attention"] * 2
FAMILY_CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama-tied-bias": {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 24},
    "qwen2": {},
    "qwen2-window": {
        "use_sliding_window": True,
        "sliding_window": 16,
        "max_window_layers": 2,
    },
    "qwen3": {"tie_word_embeddings": True},
    "qwen3_moe": {
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
        "mlp_only_layers": [1],
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "gemma2": {
        "sliding_window": 20,
        "query_pre_attn_scalar": 12,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 8.0,
        "layer_types": TWO_KINDS,
        # A tied head makes so small a model of this scaling repeat its input.
        "tie_word_embeddings": False,
    },
    "gemma3_text": {
        "tie_word_embeddings": False,
        "sliding_window": 20,
        "query_pre_attn_scalar": 12,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"],
    },
    "phi3": {},
    "glm4": {"attention_bias": True},
    "smollm3": {"no_rope_layer_interval": 2},
    "olmo2": {},
    "olmo3": {"sliding_window": 20, "layer_types": TWO_KINDS},
    "granite": {
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "attention_multiplier": 0.2,
        "logits_scaling": 2.0,
    },
    "seed_oss": {"attention_bias": True, "attention_out_bias": True},
    "gpt_oss": {
        "sliding_window": 20,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": TWO_KINDS,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 64,
            "truncate": False,
        },
    },
}


def save_tiny(name: str, folder: Path, **overrides: Any) -> Any:
    """Saves a float32 checkpoint of FAMILY_CONFIGS[name]; returns the reference model."""
    entries = {**COMMON, **FAMILY_CONFIGS.get(name, {}), **overrides}
    return save_model(name.split("-")[0], folder, entries)


def save_model(model_type: str, folder: Path, entries: dict[str, Any]) -> Any:
    config = AutoConfig.for_model(model_type, **entries)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.to(torch.float32).eval()
    with torch.no_grad():
        # Ones, zeros and tied values would hide a norm, a bias or a sink that is left out.
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    return model


def reference_tokens(model: Any, prompt: list[int], num_new: int) -> list[int]:
    with torch.inference_mode():
        output = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=num_new,
            min_new_tokens=num_new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return output[0, len(prompt) :].tolist()


def forced_tokens(model: Any, prompt: list[int], output: list[int]) -> list[int]:
    """What the reference chooses at each step when it is given the steps of `output` before it.

    Equal to `output` just when greedy generation gives `output`, in one forward pass.
    """
    with torch.inference_mode():
        logits = model(torch.tensor([prompt + output])).logits[0]
    return logits[len(prompt) - 1 : -1].argmax(dim=-1).tolist()


def prompts(lengths: list[int], vocab_size: int = VOCAB_SIZE) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randint(3, vocab_size, (length,), generator=generator).tolist() for length in lengths
    ]
