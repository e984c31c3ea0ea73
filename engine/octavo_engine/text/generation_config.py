"""Defaults that a checkpoint states for sampling, and its end-of-sequence ids."""

import json
from pathlib import Path
from typing import Any

import msgspec

from octavo_engine.errors import CheckpointError


class GenerationDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """What applies where a request says nothing; None: the model says nothing either."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None
    """A default for max_tokens, never a limit."""
    eos_token_ids: tuple[int, ...] = ()


def load_generation_defaults(path: str | Path) -> GenerationDefaults:
    """Reads a checkpoint folder's generation_config.json (and config.json for the ids).

    Raises `CheckpointError` naming the file when it is not what it should be.
    """
    folder = Path(path)
    config = _read_json(folder / "config.json")
    generation = _read_json(folder / "generation_config.json")
    if "eos_token_id" not in generation and "eos_token_id" in config:
        generation = generation | {"eos_token_id": config["eos_token_id"]}
    return defaults_from(generation, str(folder / "generation_config.json"))


def defaults_from(content: dict[str, Any], source: str) -> GenerationDefaults:
    known = {
        name: content[name]
        for name in GenerationDefaults.__struct_fields__
        if content.get(name) is not None
    }
    eos = content.get("eos_token_id")
    known["eos_token_ids"] = eos if isinstance(eos, list) else [] if eos is None else [eos]
    try:
        return msgspec.convert(known, GenerationDefaults)
    except msgspec.ValidationError as error:
        raise CheckpointError(f"{source}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    return content
