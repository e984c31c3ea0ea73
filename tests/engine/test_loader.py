"""A checkpoint that does not fit its model is refused, naming file and tensor or config entry."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.runner_driver import Job, run_jobs, tokens_of
from tests.engine.tiny_models import prompts, save_tiny

from octavo_engine.config import CacheSettings, EngineConfig, ModelSettings, ParallelSettings
from octavo_engine.errors import CheckpointError, ConfigError
from octavo_engine.runner.build import build_runner
from octavo_engine.runner.model_runner import ModelRunner

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
Q_PROJ = "model.layers.1.self_attn.q_proj.weight"


def build(folder: Path, **model: Any) -> ModelRunner:
    return build_runner(
        EngineConfig(
            model=ModelSettings(path=str(folder), device="cpu", **model),
            cache=CacheSettings(block_size=16, cpu_kv_cache_gib=0.02),
        )
    )


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / WEIGHTS)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def edit_config(folder: Path, **entries: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_tiny("llama", tmp_path)
    return tmp_path


def test_a_missing_tensor_is_named(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.pop(Q_PROJ))
    with pytest.raises(CheckpointError, match=Q_PROJ):
        build(folder)


def test_a_tensor_left_over_is_named_with_its_file(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({"model.extra.weight": torch.ones(2)}))
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}.*model\.extra\.weight"):
        build(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(folder: Path) -> None:
    edit_weights(folder, lambda tensors: tensors.update({Q_PROJ: torch.ones(64, 63)}))
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS}.*{Q_PROJ}.*\[64, 63\].*\[64, 64\]"):
        build(folder)


def test_old_exporters_inverse_frequencies_are_ignored(folder: Path) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    edit_weights(folder, lambda tensors: tensors.update({name: torch.ones(8)}))
    build(folder).close()


def test_a_truncated_file_is_named(folder: Path) -> None:
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=WEIGHTS):
        build(folder)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=r"no \.safetensors"):
        build(folder)


def split_in_shards(folder: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file_name, members in shards.items():
        save_file({name: tensors[name] for name in members}, folder / file_name)
    weight_map = {name: file for file, members in shards.items() for name in members}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    (folder / WEIGHTS).unlink()


def test_shards_give_the_tokens_of_one_file(folder: Path) -> None:
    jobs = [Job(prompt, 8) for prompt in prompts([5, 20])]
    whole = build(folder)
    expected = tokens_of(run_jobs(whole, jobs))
    whole.close()
    split_in_shards(folder)
    sharded = build(folder)
    assert tokens_of(run_jobs(sharded, jobs)) == expected
    sharded.close()


def test_a_missing_shard_is_named(folder: Path) -> None:
    split_in_shards(folder)
    (folder / "b.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"b\.safetensors"):
        build(folder)


def test_an_index_that_lies_is_refused(folder: Path) -> None:
    split_in_shards(folder)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.ghost"] = "a.safetensors"
    (folder / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model\.ghost.*a\.safetensors"):
        build(folder)


def test_a_tied_head_may_be_saved_all_the_same(tmp_path: Path) -> None:
    save_tiny("llama-tied-bias", tmp_path)

    def add_head(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    edit_weights(tmp_path, add_head)
    build(tmp_path).close()


@pytest.mark.parametrize("entry", ["attention_sink_size", "logit_cap", "ffn_multiplier"])
def test_an_unknown_entry_that_changes_the_mathematics_is_named(folder: Path, entry: str) -> None:
    edit_config(folder, **{entry: 3})
    with pytest.raises(CheckpointError, match=entry):
        build(folder)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("sliding_window", 16),
        ("attn_logit_softcapping", 5.0),
        ("final_logit_softcapping", 5.0),
        ("residual_multiplier", 0.4),
        ("query_pre_attn_scalar", 3),
        ("no_rope_layers", [1, 0, 1, 0]),
        ("layer_types", ["full_attention", "chunked_attention"] * 2),
        ("hidden_activation", "gelu_pytorch_tanh"),
        ("partial_rotary_factor", 0.5),
    ],
)
def test_an_entry_of_other_families_is_not_applied_in_silence(
    folder: Path, entry: str, value: object
) -> None:
    edit_config(folder, **{entry: value})
    with pytest.raises(CheckpointError, match=f"{entry}.* is not supported for model_type 'llama'"):
        build(folder)


def test_layers_of_one_kind_may_be_listed(folder: Path) -> None:
    edit_config(folder, layer_types=["full_attention"] * 4, sliding_window=None)
    build(folder).close()


@pytest.mark.parametrize("value", [None, False, [], {}])
def test_an_unknown_entry_that_is_off_is_accepted(folder: Path, value: object) -> None:
    edit_config(folder, attention_sink_size=value)
    build(folder).close()


def test_an_unknown_entry_of_bookkeeping_is_accepted(folder: Path) -> None:
    edit_config(folder, trained_by="somebody")
    build(folder).close()


def test_an_unknown_activation_is_named(folder: Path) -> None:
    edit_config(folder, hidden_act="relu6")
    with pytest.raises(CheckpointError, match="relu6"):
        build(folder)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [("{", "not valid JSON"), ("[]", "config.json"), ('{"a": 1}', "model_type")],
)
def test_a_broken_config_is_named(folder: Path, content: str, complaint: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(CheckpointError, match=complaint):
        build(folder)


def test_a_path_that_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        build(tmp_path / "nowhere")


def test_a_context_beyond_the_models_is_refused_with_both_numbers(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"512.*256"):
        build(folder, max_model_len=512)


def test_more_ranks_than_one_are_refused(folder: Path) -> None:
    config = EngineConfig(
        model=ModelSettings(path=str(folder)), parallel=ParallelSettings(tensor_parallel_size=2)
    )
    with pytest.raises(ConfigError, match="tensor_parallel_size 2"):
        build_runner(config)
