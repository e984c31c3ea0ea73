"""`--config FILE.yaml`: every option of a command as a key. What the command line says wins."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml


def read_config_file(context: typer.Context, file: Path | None) -> Path | None:
    """Makes the file's values the defaults of the options, before any other option is looked at.

    Raises BadParameter for a file that cannot be read and for a key that is no option.
    """
    if file is None:
        return None
    names = [p.name for p in context.command.params if p.name not in ("config_file", "help", None)]
    known = {str(name) for name in names}
    values: dict[str, Any] = {}
    for key, value in _read(file).items():
        name = str(key).replace("-", "_")
        if name not in known:
            raise typer.BadParameter(f"{file}: {_no_option(str(key), known)}")
        if name in values:
            raise typer.BadParameter(f"{file}: {key!r} is given twice")
        if value is not None:
            values[name] = value
    context.default_map = {**(context.default_map or {}), **values}
    return file


ConfigFileOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=read_config_file,
        help="YAML file with options as keys, as in `max-model-len: 4096`, and the model as "
        "`model`. Options on the command line win.",
        show_default=False,
    ),
]


def _read(file: Path) -> dict[Any, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{file} cannot be read: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise typer.BadParameter(f"{file} holds a {type(content).__name__}, not options by name")
    return content


def _no_option(key: str, known: Iterable[str]) -> str:
    options = [name.replace("_", "-") for name in known]
    close = difflib.get_close_matches(key.replace("_", "-"), options, n=2)
    hint = f" Did you mean {' or '.join(close)}?" if close else ""
    return f"no such option: {key!r}.{hint}"
