"""GGUF files as Hugging Face checkpoints: config, tensors under their HF names, tokenizer.

Knows the file format and its naming; knows nothing of how a model computes or where weights go.
Quantised tensors are dequantised as they are read, so the engine computes with plain weights.
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo_engine.errors import CheckpointError
from octavo_engine.gguf.config import hf_config, hf_generation_config, layout_of
from octavo_engine.gguf.metadata import GGUFMetadata
from octavo_engine.gguf.tensors import check_tensor_types, hf_shapes, hf_tensors
from octavo_engine.gguf.tokenizer import tokenizer_files

if TYPE_CHECKING:
    import torch
    from gguf import GGUFReader


class GGUFCheckpoint:
    """One open GGUF file. The file is memory-mapped: tensors are read when they are asked for."""

    def __init__(self, path: Path, reader: "GGUFReader") -> None:
        self.path = path
        self._reader = reader
        self.metadata = GGUFMetadata(
            str(path), {key: field.contents() for key, field in reader.fields.items()}
        )
        self._layout = layout_of(self.metadata)
        check_tensor_types(str(path), reader.tensors)

    @cached_property
    def config(self) -> dict[str, Any]:
        """What `config.json` would hold. Raises `CheckpointError` for what we cannot compute."""
        return hf_config(self.metadata, self._layout, self._reader.tensors)

    @cached_property
    def generation_config(self) -> dict[str, Any]:
        """What `generation_config.json` would hold: the special ids."""
        return hf_generation_config(self.metadata)

    @cached_property
    def tokenizer_files(self) -> dict[str, dict[str, Any]]:
        """tokenizer.json and tokenizer_config.json (with the chat template) by file name."""
        return tokenizer_files(self.metadata)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of every tensor by Hugging Face name, from the header alone."""
        return hf_shapes(self.metadata, self._reader.tensors)

    def tensors(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """(Hugging Face name, tensor) one at a time, each freshly allocated on the CPU.

        float16 and bfloat16 tensors keep their type; quantised ones come as float32.
        """
        return hf_tensors(self.metadata, self._layout, self._reader.tensors)


def is_gguf(path: str | Path) -> bool:
    return Path(path).suffix == ".gguf"


def read_gguf(path: str | Path) -> GGUFCheckpoint:
    """Opens a GGUF file and checks its header.

    Raises `CheckpointError` when the file is missing, broken, of another architecture than
    those we map, or has tensors whose data is not all there.
    """
    from gguf import GGUFReader

    path = Path(path)
    try:
        reader = GGUFReader(path)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, KeyError, IndexError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} is not a complete GGUF file: {error}") from error
    return GGUFCheckpoint(path, reader)
