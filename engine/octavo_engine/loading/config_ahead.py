"""Has a config read by another process while this one imports torch. Imports neither itself."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.config_cache import config_cache
from octavo_engine.loading.config_file import read_config
from octavo_engine.loading.config_process import Answer, Question
from octavo_engine.model_config import ModelConfig
from octavo_engine.models.families import FAMILIES

log = structlog.get_logger(__name__)


class ConfigReading:
    def __init__(self, raw: Mapping[str, Any], process: "subprocess.Popen[bytes]") -> None:
        self._raw = raw
        self._process = process

    def config_of(self, raw: Mapping[str, Any]) -> ModelConfig | None:
        """Waits, once. None: for other entries than those that are being read, or when the process
        failed. Raises CheckpointError as reading does."""
        if raw != self._raw:
            return None
        output, _ = self._process.communicate()
        try:
            answer = msgspec.json.decode(output, type=Answer)
        except msgspec.DecodeError:
            code = self._process.returncode
            log.warning("config_process_failed", exit_code=code, hint="read by this process")
            return None
        if answer.config is None:
            raise CheckpointError(answer.refusal)
        return answer.config


@contextmanager
def reading_ahead(path: str) -> Iterator[ConfigReading | None]:
    """path: of a model. None where there is nothing to gain: the config is in the cache, of no
    family of the table, or this process has imported transformers anyway."""
    raw = _unread(Path(path))
    if raw is None:
        yield None
        return
    command = [sys.executable, "-m", "octavo_engine.loading.config_process"]
    name = str(Path(path) / "config.json")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has failed, which is found when it is asked
            process.stdin.write(msgspec.json.encode(Question(raw, name)))
            process.stdin.close()
        process.stdin = None  # `communicate` would close it again
        try:
            yield ConfigReading(raw, process)
        finally:
            process.kill()


def _unread(folder: Path) -> dict[str, Any] | None:
    if "transformers" in sys.modules or not folder.is_dir():
        return None
    try:
        raw = read_config(folder)
    except CheckpointError:  # told when the model is opened
        return None
    needs_transformers = raw["model_type"] in FAMILIES and config_cache().find(raw) is None
    return raw if needs_transformers else None
