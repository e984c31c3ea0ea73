"""Opens a model by its path, a Hugging Face folder or a GGUF file, and loads it checked.

The one place that brings together config, families, sources and slots.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import structlog
import torch

from octavo_engine.batch import KVGroup
from octavo_engine.config import LoadFormat
from octavo_engine.errors import CheckpointError
from octavo_engine.layers.linear import Build
from octavo_engine.loading.config_ahead import ConfigReading
from octavo_engine.loading.config_cache import config_cache
from octavo_engine.loading.config_file import (
    check_family_entries,
    check_known_entries,
    parse_config,
    read_config,
    read_quantization,
)
from octavo_engine.loading.kv_scales import is_kv_scale, kv_scales
from octavo_engine.loading.loader import check_fit, fill
from octavo_engine.loading.names import PublishedNames, has_split_gate_up
from octavo_engine.loading.random_weights import NoWeights, RandomWeights
from octavo_engine.loading.slots import Slot
from octavo_engine.loading.source import GGUFSource, SafetensorsSource, WeightSource
from octavo_engine.model_config import ModelConfig
from octavo_engine.models.decoder import Decoder
from octavo_engine.models.families import FAMILIES, build_model_config
from octavo_engine.progress import Report, silent
from octavo_engine.quantization.checkpoint import QuantizedCheckpoint
from octavo_engine.quantization.read_config import read_scheme, refuse_unnamed_quantization
from octavo_engine.quantization.scheme import Scheme
from octavo_engine.quantization.settle import settle_zero_points
from octavo_kernels import KVScales

log = structlog.get_logger(__name__)


def _read_nothing(names: Iterable[str]) -> dict[str, torch.Tensor]:
    return {}


@dataclass(frozen=True)
class ModelFiles:
    """An opened checkpoint: its config is read, its weights are not."""

    name: str
    """Of the file with the config, for messages."""
    raw_config: Mapping[str, Any]
    source: WeightSource
    is_gguf: bool
    scheme: Scheme | None
    """How the config says that they are quantised; None: they are not, or in GGUF's own way."""
    read: Callable[[Iterable[str]], dict[str, torch.Tensor]] = _read_nothing
    """Some small tensors of a folder, ahead of the others."""

    @cached_property
    def hf_config(self) -> Any:
        """As transformers reads it, which takes seconds the first time in a process."""
        return parse_config(self.raw_config, self.name)

    @property
    def is_in_table(self) -> bool:
        return self.raw_config["model_type"] in FAMILIES

    def kv_scales(
        self, num_kv_heads: int, heads: slice, device: torch.device
    ) -> dict[int, KVScales]:
        """The checkpoint's own, by layer; see `loading.kv_scales`."""
        names = filter(is_kv_scale, self.source.infos())
        return kv_scales(self.read(names), num_kv_heads, heads, device)

    def model_config(self, reading: ConfigReading | None = None) -> ModelConfig:
        """reading: what another process makes of the same config. Raises CheckpointError for
        entries that the layers of the table do not know."""
        check_known_entries(self.raw_config, self.name)
        cache = config_cache()
        config = cache.find(self.raw_config)
        if config is None:
            config = self._read_config(reading)
            cache.keep(self.raw_config, config)
        if config.has_packed_gate_up and has_split_gate_up(self.source.infos()):
            return replace(config, has_packed_gate_up=False)
        return config

    def _read_config(self, reading: ConfigReading | None) -> ModelConfig:
        if reading is not None and (config := reading.config_of(self.raw_config)) is not None:
            return config
        check_family_entries(self.raw_config, self.hf_config, self.name)
        return build_model_config(self.hf_config)


def open_model(path: str, load_format: LoadFormat = "auto") -> ModelFiles:
    """Raises CheckpointError naming what is missing or wrong."""
    location = Path(path)
    if load_format == "dummy":
        return _open_config(location)
    if location.suffix == ".gguf":
        from octavo_engine.gguf.checkpoint import read_gguf

        checkpoint = read_gguf(location)
        raw: Mapping[str, Any] = checkpoint.config
        name = location.name
        source: WeightSource = GGUFSource(checkpoint, location)
        scheme, read = None, _read_nothing
    elif location.is_dir():
        raw = read_config(location)
        name = str(location / "config.json")
        folder_source = SafetensorsSource(location)
        scheme = _read_scheme(location, raw, folder_source)
        source = PublishedNames(folder_source, raw["model_type"])
        read = source.read
    else:
        raise CheckpointError(f"{path} is neither a folder nor a .gguf file")
    return ModelFiles(
        name=name,
        raw_config=raw,
        source=source,
        is_gguf=location.suffix == ".gguf",
        scheme=scheme,
        read=read,
    )


def read_model(folder: Path) -> tuple[ModelConfig, Scheme | None]:
    """The model and how it is quantised, from a folder that may hold a config alone."""
    raw = read_config(folder)
    found = read_quantization(folder, raw)
    scheme = None if found is None else read_scheme(*found)
    return _config_alone(folder, raw, scheme).model_config(), scheme


def _open_config(folder: Path) -> ModelFiles:
    raw = read_config(folder)
    if read_quantization(folder, raw) is not None:
        raise CheckpointError(f"{folder}: dummy weights cannot take a checkpoint's quantization")
    return _config_alone(folder, raw, None)


def _config_alone(folder: Path, raw: Mapping[str, Any], scheme: Scheme | None) -> ModelFiles:
    return ModelFiles(
        name=str(folder / "config.json"),
        raw_config=raw,
        source=NoWeights(),
        is_gguf=False,
        scheme=scheme,
    )


def _read_scheme(folder: Path, raw: Mapping[str, Any], source: SafetensorsSource) -> Scheme | None:
    found = read_quantization(folder, raw)
    if found is None:
        refuse_unnamed_quantization(source.infos())
        return None
    return read_scheme(*found)


def load_decoder(
    files: ModelFiles,
    config: ModelConfig,
    groups: tuple[KVGroup, ...],
    build: Build,
    scheme: Scheme | None = None,
    report: Report = silent,
) -> Decoder:
    """Checks the whole checkpoint against the model before memory is taken for a single weight.

    scheme: how its matrices are quantised, or are to be while they are loaded.
    """
    source: WeightSource = files.source
    if isinstance(source, PublishedNames) and build.device.type == "cuda":
        source = source.onto(build.device)
    infos = source.infos()
    quantized = None if scheme is None else QuantizedCheckpoint(scheme, infos, build.device)
    build = replace(build, quantization=quantized)
    outline = Decoder(config, groups, replace(build, device=torch.device("meta")))
    ignored = outline.optional_names()
    if quantized is not None:
        ignored |= quantized.ignored_names()
    ignored |= frozenset(filter(is_kv_scale, infos))
    if not isinstance(source, NoWeights):
        check_fit(_slots(outline, quantized), infos, ignored)
    if scheme is not None:
        # From a few weights, so not before everything that needs none was checked.
        scheme = settle_zero_points(scheme, infos, files.read)
        quantized = QuantizedCheckpoint(scheme, infos, build.device)
        build = replace(build, quantization=quantized)
    decoder = Decoder(config, groups, build)
    if isinstance(source, NoWeights):
        source = RandomWeights(lambda: _slots(decoder, quantized), build.device, build.dtype)
    fill(_slots(decoder, quantized), source, report)
    decoder.finish()
    if quantized is not None:
        quantized.log_memory()
    return decoder


def _slots(decoder: Decoder, quantized: QuantizedCheckpoint | None) -> Iterable[Slot]:
    return decoder.slots() if quantized is None else quantized.slots(decoder.slots())
