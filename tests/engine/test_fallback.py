"""Architectures outside the table run by transformers' modules over our pages, with its tokens."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.engine.runner_driver import Job, run_jobs, tokens_of
from tests.engine.tiny_models import COMMON, forced_tokens, prompts, save_model

from octavo_engine.batch import Runner
from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings
from octavo_engine.errors import CheckpointError
from octavo_engine.runner.build import build_runner

NUM_NEW = 24
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "opt": {
        "ffn_dim": 96,
        "word_embed_proj_dim": 64,
        "activation_function": "relu",
        "init_std": 0.2,
        "dropout": 0.0,
    },
    "gpt_neox": {"hidden_act": "gelu"},
    "falcon": {
        "num_kv_heads": 1,
        "multi_query": True,
        "parallel_attn": True,
        "alibi": False,
        "new_decoder_architecture": False,
    },
    "jais2": {"hidden_act": "relu2"},
    "exaone4": {
        "sliding_window": 20,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 6,
    },
}


def build(folder: Path) -> Runner:
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu"),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_tokens_are_those_of_transformers(model_type: str, tmp_path: Path) -> None:
    entries = {**COMMON, **ARCHITECTURES[model_type]}
    if model_type == "falcon":  # derives its head_dim and has its own name for KV heads
        entries = {k: v for k, v in entries.items() if k not in ("head_dim", "num_key_value_heads")}
    reference = save_model(model_type, tmp_path, entries)
    with capture_logs() as logs:
        runner = build(tmp_path)
    assert any(entry["event"] == "transformers_fallback" for entry in logs)
    jobs = [Job(prompt, NUM_NEW) for prompt in prompts([1, 7, 19, 20, 21, 40])]
    together = tokens_of(run_jobs(runner, jobs))
    for job, tokens in zip(jobs, together, strict=True):
        assert tokens == forced_tokens(reference, job.token_ids, tokens)
    assert tokens_of(run_jobs(runner, jobs, chunk=7)) == together
    runner.close()


def test_attention_outside_the_interface_is_refused(tmp_path: Path) -> None:
    save_model("mpt", tmp_path, {"vocab_size": 128, "d_model": 64, "n_heads": 4, "n_layers": 2})
    with pytest.raises(CheckpointError, match="Mpt"):
        build(tmp_path)


def test_rotation_by_the_longest_of_a_batch_is_refused(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    save_model("exaone4", tmp_path, {**COMMON, **ARCHITECTURES["exaone4"], "rope_parameters": rope})
    with pytest.raises(CheckpointError, match="dynamic"):
        build(tmp_path)
