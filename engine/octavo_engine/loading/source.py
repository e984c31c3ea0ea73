"""Where weights come from: safetensors folders (one file or shards with an index) and GGUF files.

A source tells names and shapes before any weight is read. Knows no model.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from octavo_engine.errors import CheckpointError
from octavo_engine.loading.parallel_read import ParallelReader

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MIN_PARALLEL_BYTES = 64 * 2**20
"""Below, the buffers of a parallel read take longer to make than the files to read."""


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]
    file: str
    """For messages."""
    dtype: str
    """As safetensors names it; F32 for what a GGUF file holds, which is dequantised."""


class WeightSource(Protocol):
    def infos(self) -> dict[str, TensorInfo]:
        """Every tensor by name. Raises CheckpointError for a missing or broken file."""
        ...

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Every tensor once, on the CPU unless the source was told another device; few are held at
        a time."""
        ...


class SafetensorsSource:
    """The .safetensors files of a folder: those of the index, else model.safetensors, else all."""

    def __init__(self, folder: Path, device: torch.device | None = None) -> None:
        """device: a GPU onto which large files are read by several threads; None: no GPU."""
        self._folder = folder
        self._device = device
        self._index = _read_index(folder)
        self._files = _list_files(folder, self._index)

    def onto(self, device: torch.device) -> "SafetensorsSource":
        return SafetensorsSource(self._folder, device)

    def infos(self) -> dict[str, TensorInfo]:
        found: dict[str, TensorInfo] = {}
        for path in self._files:
            with _OpenFile(path) as file:
                for name in sorted(set(file.keys())):
                    if name in found:
                        raise CheckpointError(
                            f"tensor {name!r} is in {found[name].file} and again in {path.name}"
                        )
                    header = file.get_slice(name)
                    shape = tuple(header.get_shape())
                    found[name] = TensorInfo(shape, path.name, header.get_dtype())
        for name, file_name in self._index.items():
            if name not in found or found[name].file != file_name:
                raise CheckpointError(
                    f"{INDEX_NAME} places tensor {name!r} in {file_name}, which does not hold it"
                )
        return found

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        num_bytes = sum(path.stat().st_size for path in self._files)
        if self._device is not None and num_bytes >= MIN_PARALLEL_BYTES:
            yield from ParallelReader(self._files, self._device).tensors()
            return
        for path in self._files:
            with _OpenFile(path) as file:
                for name in sorted(set(file.keys())):
                    yield name, file.get_tensor(name)

    def read(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Some tensors ahead of the others."""
        wanted = set(names)
        found: dict[str, torch.Tensor] = {}
        for path in self._files:
            with _OpenFile(path) as file:
                for name in sorted(wanted.intersection(file.keys())):
                    found[name] = file.get_tensor(name)
        return found


class GGUFSource:
    """The tensors of one GGUF file under their Hugging Face names, dequantised one by one."""

    def __init__(self, checkpoint: Any, path: Path) -> None:
        self._checkpoint = checkpoint
        self._path = path

    def infos(self) -> dict[str, TensorInfo]:
        shapes: dict[str, tuple[int, ...]] = self._checkpoint.shapes()
        return {name: TensorInfo(shape, self._path.name, "F32") for name, shape in shapes.items()}

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self._checkpoint.tensors()


def _read_index(folder: Path) -> dict[str, str]:
    """Tensor name to file name; empty without an index."""
    path = folder / INDEX_NAME
    if not path.exists():
        return {}
    try:
        index = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is not a valid index: {error!r}") from error
    return dict(index)


def _list_files(folder: Path, index: dict[str, str]) -> list[Path]:
    if index:
        paths = [folder / name for name in sorted(set(index.values()))]
    elif (folder / SINGLE_NAME).exists():
        paths = [folder / SINGLE_NAME]
    else:
        paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise CheckpointError(f"{folder} holds no .safetensors file")
    for path in paths:
        if not path.is_file():
            raise CheckpointError(f"{INDEX_NAME} names {path.name}, which is not in {folder}")
    return paths


class _OpenFile:
    """A safetensors file as a context; every failure becomes a CheckpointError naming the file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = ExitStack()

    def __enter__(self) -> Any:
        from safetensors import SafetensorError, safe_open

        try:
            return self._stack.enter_context(safe_open(self._path, framework="pt"))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{self._path} cannot be read: {error}") from error

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
