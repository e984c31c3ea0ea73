"""Remembers what a checkpoint's config came to, so that a start needs no transformers: importing
its config classes takes five seconds, most of a warm start.

An entry is found by a digest of the config, of transformers' version and of the code that reads
it. Without the variable OCTAVO_CACHE_DIR nothing is remembered.
"""

import hashlib
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import structlog

import octavo_engine
from octavo_engine.loading.cache_variable import CACHE_VARIABLE
from octavo_engine.model_config import ModelConfig

log = structlog.get_logger(__name__)


_CODE = ("model_config.py", "rope.py", "models/families.py", "loading/config_file.py")
"""Below this package: what decides about a ModelConfig."""


class ConfigCache:
    def __init__(self, folder: Path | None) -> None:
        """folder: None for a cache that remembers nothing."""
        self._folder = folder

    def find(self, raw: Mapping[str, Any]) -> ModelConfig | None:
        """raw: the entries of config.json."""
        if self._folder is None:
            return None
        path = self._path(self._folder, raw)
        try:
            return msgspec.json.decode(path.read_bytes(), type=ModelConfig)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("config_cache_unreadable", path=str(path), error=str(error))
            return None

    def keep(self, raw: Mapping[str, Any], config: ModelConfig) -> None:
        """A cache that cannot be written costs the next start some seconds, no more."""
        if self._folder is None:
            return
        path = self._path(self._folder, raw)
        half = path.with_suffix(f".{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            half.write_bytes(msgspec.json.encode(config))
            half.replace(path)
        except OSError as error:
            log.info("config_cache_not_written", path=str(path), error=str(error))

    def _path(self, folder: Path, raw: Mapping[str, Any]) -> Path:
        digest = hashlib.sha256(msgspec.json.encode(raw, order="deterministic"))
        digest.update(version("transformers").encode())
        package = Path(octavo_engine.__file__).parent
        for name in _CODE:
            digest.update((package / name).read_bytes())
        return folder / "configs" / f"{digest.hexdigest()[:32]}.json"


def config_cache() -> ConfigCache:
    """The one in the folder that the environment names."""
    folder = os.environ.get(CACHE_VARIABLE)
    return ConfigCache(Path(folder) if folder else None)
