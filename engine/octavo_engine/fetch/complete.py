"""Whether a folder holds all that serving needs; looks at headers, never at weights."""

import json
from pathlib import Path

from octavo_engine.errors import CheckpointError

_INDEX = "model.safetensors.index.json"
_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("vocab.json", "merges.txt"))
_MAX_HEADER_BYTES = 100 * 2**20
_GGUF_MAGIC = b"GGUF"


def check_folder(folder: Path) -> None:
    """Raises CheckpointError that names what is missing or cut off."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"config.json is missing beside the weights in {folder.name}")
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
        wanted = ", or ".join(" with ".join(names) for names in _TOKENIZERS)
        raise CheckpointError(f"no tokenizer is there: {wanted}")
    weights = sorted(folder.glob("*.safetensors"))
    missing = sorted(_indexed(folder) - {path.name for path in weights})
    if missing:
        raise CheckpointError(f"{_INDEX} names files that are not there: {', '.join(missing)}")
    if not weights:
        raise CheckpointError("no .safetensors file is there")
    for path in weights:
        _check_safetensors(path)


def check_gguf(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(4) != _GGUF_MAGIC:
            raise CheckpointError(f"{path.name} is not a GGUF file")


def _indexed(folder: Path) -> set[str]:
    path = folder / _INDEX
    if not path.exists():
        return set()
    try:
        return set(json.loads(path.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{_INDEX} is not an index of shards: {error!r}") from error


def _check_safetensors(path: Path) -> None:
    """The header tells where the last tensor ends: the file must end there, too."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or header_bytes > min(size_bytes - 8, _MAX_HEADER_BYTES):
            raise CheckpointError(f"{path.name} is cut off or not a safetensors file")
        text = file.read(header_bytes)
    try:
        header = json.loads(text)
        ends = [entry["data_offsets"][1] for name, entry in header.items() if name[:2] != "__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise CheckpointError(f"{path.name} has a broken header: {error!r}") from error
    wanted_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != wanted_bytes:
        raise CheckpointError(
            f"{path.name} has {size_bytes} bytes, its header speaks of {wanted_bytes}"
        )
