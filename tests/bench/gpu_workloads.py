"""Fixed work for comparing engines: prompts of random ids, output lengths, nothing else.

Lengths come from numpy's generator with seed 0, so that every engine and run does the same work;
ids come from another, so that runs differ in their tokens and never hit each other's prefixes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST_ID = 100_000
"""Ids are drawn from [10, LARGEST_ID): in the vocabulary of both models, no special ids."""

LLAMA_8B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
QWEN3_06B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rope_theta": 1000000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
MODELS = {"llama8b": LLAMA_8B, "qwen06b": QWEN3_06B}


@dataclass(frozen=True)
class Job:
    prompt: list[int]
    num_new: int


def _ids(generator: np.random.Generator, count: int) -> list[int]:
    ids: list[int] = generator.integers(10, LARGEST_ID, size=count).tolist()
    return ids


def mixed(count: int, rep: int) -> list[Job]:
    """Lognormal lengths, about 220 in and 192 out, clipped to [4, 1024]."""
    lengths = np.random.default_rng(0)
    inputs = lengths.lognormal(mean=5.05, sigma=0.95, size=count)
    outputs = lengths.lognormal(mean=4.98, sigma=0.75, size=count)
    ids = np.random.default_rng(1000 + rep)
    return [
        Job(_ids(ids, num_in), num_out)
        for num_in, num_out in zip(
            np.clip(np.rint(inputs), 4, 1024).astype(int).tolist(),
            np.clip(np.rint(outputs), 4, 1024).astype(int).tolist(),
            strict=True,
        )
    ]


def fixed(count: int, num_in: int, num_out: int, rep: int) -> list[Job]:
    ids = np.random.default_rng(1000 + rep)
    return [Job(_ids(ids, num_in), num_out) for _ in range(count)]


def shared_prefix(count: int, num_shared: int, num_own: int, num_out: int, rep: int) -> list[Job]:
    shared = _ids(np.random.default_rng(50_000 + rep), num_shared)
    ids = np.random.default_rng(1000 + rep)
    return [Job(shared + _ids(ids, num_own), num_out) for _ in range(count)]
