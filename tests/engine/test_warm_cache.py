"""Starts without weights, and the folder in which one start leaves what the next need not do."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.engine.tiny_models import save_tiny

from octavo_engine.cli.caches import name_the_caches
from octavo_engine.errors import CheckpointError
from octavo_engine.layers.linear import Build
from octavo_engine.loading.model_files import load_decoder, open_model
from octavo_engine.loading.random_weights import RandomWeights
from octavo_engine.model_config import kv_groups


@pytest.fixture
def config_alone(tmp_path: Path) -> Path:
    save_tiny("llama", tmp_path / "whole")
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
    return folder


def test_dummy_weights_fill_every_matrix(config_alone: Path) -> None:
    files = open_model(str(config_alone), "dummy")
    config = files.model_config()
    groups = kv_groups([layer.window for layer in config.layers])
    decoder = load_decoder(files, config, groups, Build(torch.device("cpu"), torch.float32))
    assert 0.01 < decoder.vocabulary.embedding.std() < 0.03
    assert decoder.norm.weight.eq(1).all()
    drawn = RandomWeights(decoder.slots, torch.device("cpu"), torch.float32).tensors()
    spreads = {name: weight.std().item() for name, weight in drawn if weight.dim() > 1}
    assert len(spreads) > len(decoder.blocks)
    assert all(0.01 < spread < 0.03 for spread in spreads.values()), spreads


def test_a_folder_without_weights_is_refused_unless_asked_for(config_alone: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no \.safetensors file"):
        open_model(str(config_alone))


def test_dummy_weights_refuse_a_quantized_checkpoint(config_alone: Path) -> None:
    path = config_alone / "config.json"
    raw = json.loads(path.read_text()) | {"quantization_config": {"quant_method": "awq"}}
    path.write_text(json.dumps(raw))
    with pytest.raises(CheckpointError, match="dummy weights"):
        open_model(str(config_alone), "dummy")


@pytest.mark.parametrize(
    ("given", "cache", "kernels"),
    [
        ({"HOME": "/h"}, "/h/.cache/octavo", "/h/.cache/octavo/kernels"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/octavo", "/x/octavo/kernels"),
        ({"OCTAVO_CACHE_DIR": "/c"}, "/c", "/c/kernels"),
        ({"OCTAVO_CACHE_DIR": "/c", "TRITON_CACHE_DIR": "/t"}, "/c", "/t"),
        ({}, None, None),
    ],
)
def test_all_caches_live_in_one_folder(
    given: dict[str, str], cache: str | None, kernels: str | None
) -> None:
    name_the_caches(given)
    assert given.get("OCTAVO_CACHE_DIR") == cache
    assert given.get("TRITON_CACHE_DIR") == kernels
    assert given.get("NUMBA_CACHE_DIR") == (cache and f"{cache}/cpu-kernels")


def test_warm_cache_leaves_the_config_read(config_alone: Path, tmp_path: Path) -> None:
    environment = os.environ | {"OCTAVO_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "octavo_engine", "warm-cache", str(config_alone)]
    options = ["--device", "cpu", "--cpu-kv-cache-gib", "0.01"]
    done = subprocess.run(
        [*command, *options], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"0 kernels in {tmp_path / 'cache'}" in done.stdout
    assert len(list((tmp_path / "cache" / "configs").iterdir())) == 1
