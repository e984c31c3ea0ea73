"""`--config FILE.yaml`: options from a file, the command line over them, unknown keys refused."""

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from octavo_engine.cli.config_file import ConfigFileOption
from octavo_engine.cli.options import with_engine_options
from octavo_engine.cli.serve_options import NamesOption, PortOption
from octavo_engine.config import EngineConfig


class Command:
    """A command with the engine's options, and what it was called with."""

    def __init__(self) -> None:
        self.config: EngineConfig | None = None
        self.own: dict[str, Any] = {}

    def run(self, *arguments: str) -> str:
        """What it complained of; empty when it ran."""

        def command(
            config: EngineConfig,
            config_file: ConfigFileOption = None,
            port: PortOption = 8000,
            served_model_name: NamesOption = None,
        ) -> None:
            self.config = config
            self.own = {"port": port, "names": served_model_name}

        app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command()(with_engine_options(command))
        result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
        return "" if result.exit_code == 0 else result.output


def test_file_gives_every_kind_of_option_and_the_model(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(
        "model: some/folder\nmax-model-len: 4096\nprefix_caching: false\n"
        "gpu-memory-utilization: 0.5\nserved-model-name: [a, b]\ndtype: float32\ntarget-itl-ms:\n"
    )
    command = Command()
    assert command.run("--config", str(file)) == ""
    assert command.config is not None
    assert command.config.model.path == "some/folder"
    assert command.config.model.max_model_len == 4096
    assert command.config.model.dtype == "float32"
    assert command.config.cache.prefix_caching is False
    assert command.config.cache.gpu_memory_utilization == 0.5
    assert command.config.scheduler.target_itl_ms is None
    assert command.own == {"port": 8000, "names": ["a", "b"]}


def test_command_line_wins_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text("port: 1\nmax-num-seqs: 3\nmodel: other\n")
    command = Command()
    assert command.run("--port", "2", "m", "--config", str(file)) == ""
    assert command.own["port"] == 2
    assert command.config is not None
    assert command.config.model.path == "m"
    assert command.config.scheduler.max_num_seqs == 3


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("max-modl-len: 5", ["'max-modl-len'", "max-model-len"]),
        ("config: other.yaml", ["no such option: 'config'"]),
        ("max-model-len: 5\nmax_model_len: 6", ["max_model_len", "given twice"]),
        ("max-model-len: many", ["max-model-len", "valid integer"]),
        ("- port", ["holds a list"]),
        ("port: [", ["cannot be read"]),
    ],
)
def test_wrong_file_is_refused_with_the_key_or_the_cause(
    tmp_path: Path, content: str, words: list[str]
) -> None:
    file = tmp_path / "octavo.yaml"
    file.write_text(content)
    command = Command()
    complaint = command.run("m", "--config", str(file))
    assert command.config is None
    assert all(word in complaint for word in words), complaint


def test_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    complaint = Command().run("m", "--config", str(tmp_path / "none.yaml"))
    assert "none.yaml" in complaint
