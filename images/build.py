"""Builds the operator's and the engine's image for a registry of yours: `make images REGISTRY=…`.

usage: python -m images.build --help

By docker, or by buildah where there is no docker. Base images must be at hand or can be pulled;
everything else comes as wheels from the package index that pip is set to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from images import context

from octavo_engine.version import octavo_version

_CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "octavo"


class NoBuilder(Exception):
    """Neither docker nor buildah answers here."""


def builder() -> list[str]:
    """The words that `build -f FILE -t NAME FOLDER` follow."""
    if _answers(["docker", "info"]):
        return ["docker", "build"]
    if _answers(["buildah", "version"]):
        return ["buildah", "bud", "--layers"]
    raise NoBuilder("neither a running docker nor buildah is here to build images with")


def _answers(argv: Sequence[str]) -> bool:
    if shutil.which(argv[0]) is None:
        return False
    return subprocess.run(argv, capture_output=True, check=False).returncode == 0


def base_python(build: Sequence[str], base: str) -> str:
    """The base image's Python version such as 3.12, asked of the image itself."""
    question = "import sys; print('%d.%d' % sys.version_info[:2])"
    if build[0] == "docker":
        argv = ["docker", "run", "--rm", "--entrypoint", "python3", base, "-c", question]
        return _said(argv)
    container = _said(["buildah", "from", base])
    try:
        argv = ["buildah", "run", "--isolation", "chroot", container, "--", "python3", "-c"]
        return _said([*argv, question])
    finally:
        _said(["buildah", "rm", container])


def _said(argv: Sequence[str]) -> str:
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def build_image(extra: context.Extra, name: str, base: str) -> None:
    """Builds one image under `name`; raises `CalledProcessError` after the builder's own words."""
    build = builder()
    version = base_python(build, base)
    wheels = context.wheels(extra, version, _CACHE / "wheels", typer.echo)
    _CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=_CACHE) as scratch:
        context.write_context(Path(scratch), wheels)
        isolation = ["--isolation", "chroot"] if build[0] == "buildah" else []
        words = ["--build-arg", f"BASE_IMAGE={base}", "--tag", name]
        words += ["--file", str(context.dockerfile(extra)), scratch]
        subprocess.run([*build, *isolation, *words], check=True)


def main(
    names: Annotated[list[context.Extra] | None, typer.Argument(help="Default: both.")] = None,
    registry: Annotated[str, typer.Option(help="What the images' names begin with.")] = "localhost",
    operator_base: Annotated[str, typer.Option(help="Python 3.11 or newer with pip.")] = (
        "docker.io/library/python:3.12-slim"
    ),
    engine_base: Annotated[str, typer.Option(help="The same, with a C compiler for Triton.")] = (
        "docker.io/library/python:3.12"
    ),
    push: Annotated[bool, typer.Option("--push", help="Push what was built.")] = False,
) -> None:
    """Build Octavo's images and print their names."""
    bases: dict[context.Extra, str] = {
        context.Extra.operator: operator_base,
        context.Extra.engine: engine_base,
    }
    try:
        for extra in names or list(bases):
            name = f"{registry}/octavo-{extra}:{octavo_version()}"
            build_image(extra, name, bases[extra])
            if push:
                subprocess.run([builder()[0], "push", name], check=True)
            typer.echo(name)
    except (NoBuilder, subprocess.CalledProcessError) as error:
        typer.echo(f"\n{error}", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    typer.run(main)
