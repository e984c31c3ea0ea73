"""A config that was read once is found again, exactly, and never where anything differs."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.engine.tiny_models import save_tiny

from octavo_engine.loading.cache_variable import CACHE_VARIABLE
from octavo_engine.loading.config_cache import ConfigCache
from octavo_engine.loading.model_files import open_model

NO_TRANSFORMERS = """
import sys
sys.modules["transformers"] = None
from octavo_engine.loading.model_files import open_model
print(open_model(sys.argv[1]).model_config().hidden_size)
"""


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_moe", "gpt_oss", "phi3"])
def test_what_is_kept_is_found_equal(name: str, tmp_path: Path) -> None:
    save_tiny(name, tmp_path / "model")
    files = open_model(str(tmp_path / "model"))
    config = files.model_config()
    cache = ConfigCache(tmp_path / "cache")
    assert cache.find(files.raw_config) is None
    cache.keep(files.raw_config, config)
    assert cache.find(files.raw_config) == config
    assert cache.find({**files.raw_config, "hidden_size": 9}) is None


def test_the_second_start_needs_no_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny("llama", tmp_path / "model")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    command = [sys.executable, "-c", NO_TRANSFORMERS, str(tmp_path / "model")]
    assert subprocess.run(command, capture_output=True, check=False).returncode != 0
    size = open_model(str(tmp_path / "model")).model_config().hidden_size
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(size)]


def test_a_damaged_entry_is_read_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_tiny("llama", tmp_path / "model")
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    config = open_model(str(tmp_path / "model")).model_config()
    (entry,) = (tmp_path / "cache" / "configs").iterdir()
    entry.write_bytes(b"{}")
    assert open_model(str(tmp_path / "model")).model_config() == config


def test_a_cache_that_cannot_be_written_is_none(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "model")
    (tmp_path / "cache").write_text("a file")
    files = open_model(str(tmp_path / "model"))
    cache = ConfigCache(tmp_path / "cache")
    cache.keep(files.raw_config, files.model_config())
    assert cache.find(files.raw_config) is None


def test_the_engine_is_imported_without_transformers() -> None:
    """Its import takes longer than all the rest of a warm start."""
    code = "import octavo_engine.runner.build, octavo_engine.cuda.build, sys\n"
    code += "import octavo_engine.core.engine\nprint('transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
