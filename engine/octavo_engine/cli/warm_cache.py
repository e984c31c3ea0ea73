"""`octavo warm-cache`: does once what every start of a model would do and leaves it in a folder."""

import os
from pathlib import Path
from time import perf_counter

import msgspec
import typer

from octavo_engine.cli.caches import TRITON_VARIABLE
from octavo_engine.cli.serve import start_logs
from octavo_engine.cli.termination import explain
from octavo_engine.config import EngineConfig
from octavo_engine.errors import OctavoError
from octavo_engine.loading.cache_variable import CACHE_VARIABLE


def warm_cache(config: EngineConfig) -> None:
    """Compile a model's kernels into OCTAVO_CACHE_DIR, for an image or a volume to carry.

    The folder needs no weights. Run it with the options of `serve` on the kind of GPU that will
    serve: compiled kernels are of one kind.
    """
    start_logs(None)
    started_s = perf_counter()
    model = msgspec.structs.replace(config.model, load_format="dummy")
    try:
        _start_once(msgspec.structs.replace(config, model=model))
    except OctavoError as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        raise typer.Exit(termination.exit_code) from error
    kernels = Path(os.environ[TRITON_VARIABLE])
    num_kernels = sum(1 for _ in kernels.glob("*/*.cubin"))
    typer.echo(
        f"{num_kernels} kernels in {os.environ[CACHE_VARIABLE]} "
        f"after {perf_counter() - started_s:.1f} s"
    )


def _start_once(config: EngineConfig) -> None:
    from octavo_engine.runner.build import build_runner

    build_runner(config).close()
