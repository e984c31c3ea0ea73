"""Opens a model by its path, a Hugging Face folder or a GGUF file, and loads it checked.

The one place that brings together config, families, sources and slots.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from octavo_engine.batch import KVGroup
from octavo_engine.errors import CheckpointError
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_file import (
    check_known_entries,
    parse_config,
    read_config,
    refuse_quantization,
)
from octavo_engine.loading.loader import check_fit, fill
from octavo_engine.loading.source import GGUFSource, SafetensorsSource, WeightSource
from octavo_engine.model_config import ModelConfig
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import FAMILIES, build_model_config

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ModelFiles:
    """An opened checkpoint: its config is read, its weights are not."""

    name: str
    """Of the file with the config, for messages."""
    raw_config: Mapping[str, Any]
    hf_config: Any
    source: WeightSource
    is_gguf: bool

    @property
    def is_in_table(self) -> bool:
        return self.hf_config.model_type in FAMILIES

    def model_config(self) -> ModelConfig:
        """Raises CheckpointError for entries that the layers of the table do not know."""
        check_known_entries(self.raw_config, self.name)
        return build_model_config(self.hf_config)


def open_model(path: str) -> ModelFiles:
    """Raises CheckpointError naming what is missing or wrong."""
    location = Path(path)
    if location.suffix == ".gguf":
        from octavo_engine.gguf import read_gguf

        checkpoint = read_gguf(location)
        raw: Mapping[str, Any] = checkpoint.config
        name = location.name
        source: WeightSource = GGUFSource(checkpoint, location)
    elif location.is_dir():
        raw = read_config(location)
        name = str(location / "config.json")
        source = SafetensorsSource(location)
    else:
        raise CheckpointError(f"{path} is neither a folder nor a .gguf file")
    refuse_quantization(raw, name)
    return ModelFiles(
        name=name,
        raw_config=raw,
        hf_config=parse_config(raw, name),
        source=source,
        is_gguf=location.suffix == ".gguf",
    )


def load_decoder(
    files: ModelFiles, config: ModelConfig, groups: tuple[KVGroup, ...], build: Build
) -> Decoder:
    """Checks the whole checkpoint against the model before memory is taken for a single weight."""
    import torch

    outline = Decoder(config, groups, Build(torch.device("meta"), build.dtype))
    check_fit(outline.slots(), files.source.infos(), outline.optional_names())
    decoder = Decoder(config, groups, build)
    fill(decoder.slots(), files.source)
    decoder.finish()
    return decoder
