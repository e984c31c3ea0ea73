"""`octavo fetch`: a model's files into a folder, before a pod serves them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from octavo_engine.cli.serve import start_logs
from octavo_engine.cli.serve_options import LogFormatOption, TerminationOption
from octavo_engine.cli.termination import explain, write_termination_log
from octavo_engine.config import EngineConfig
from octavo_engine.fetch.fetch import Fetched
from octavo_engine.fetch.judge import judge
from octavo_engine.fetch.plan import FitPlan
from octavo_engine.fetch.progress import gib

UriArgument = Annotated[
    str,
    typer.Argument(
        help="hf://org/name@revision, modelscope://org/name, s3://bucket/folder, gs://, https://; "
        "or one .gguf file in it."
    ),
]
ToOption = Annotated[
    Path, typer.Option(help="Folder for the files; what is there and whole is not fetched again.")
]
SecretOption = Annotated[
    Path | None, typer.Option(help="Folder with the source's keys, one file each.")
]


MemoryOption = Annotated[
    float | None,
    typer.Option(
        min=0.01,
        help="GiB of one accelerator, or of the pod on a CPU: what cannot fit is refused by it.",
    ),
]


class FetchReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a fetch leaves as its termination message when it ends well, or is cut off."""

    reason: str
    """Fetched, or Fetching."""
    message: str
    fit: FitPlan | None = None
    """What it takes to serve the model; None where that cannot be told from its config alone."""


def fetch(
    config: EngineConfig,
    to: ToOption,
    secret_dir: SecretOption = None,
    memory_gib: MemoryOption = None,
    log_format: LogFormatOption = None,
    termination_log: TerminationOption = None,
) -> None:
    """Fetch a model's files: resumed where it broke off, checked, and there at once.

    Several of these may share the parent of the folder: one fetches, the others wait for it.
    """
    start_logs(log_format)

    def leave(report: FetchReport) -> None:
        if termination_log is not None:
            termination_log.write_bytes(msgspec.json.encode(report))

    try:
        fetched = _fetch(
            config.model.path, to, secret_dir, lambda text: leave(FetchReport("Fetching", text))
        )
        fit = judge(to, fetched.manifest, config, memory_gib)
    except Exception as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        if termination_log is not None:
            write_termination_log(termination, termination_log)
        raise typer.Exit(termination.exit_code) from error
    message = _sentence(fetched)
    typer.echo(message)
    leave(FetchReport("Fetched", message, fit))


def _fetch(uri: str, to: Path, secret_dir: Path | None, tell: Callable[[str], None]) -> Fetched:
    from octavo_engine.fetch import uri as model_uri
    from octavo_engine.fetch.fetch import fetch as fetch_model
    from octavo_engine.fetch.secrets import Secrets

    return fetch_model(model_uri.parse(uri), to, Secrets(secret_dir), tell)


def _sentence(fetched: Fetched) -> str:
    """About what is there now."""
    manifest = fetched.manifest
    revision = f" at revision {manifest.revision}" if manifest.revision else ""
    size = f"{gib(manifest.size_bytes)} in {len(manifest.files)} files"
    if fetched.was_there:
        return f"{manifest.uri}{revision} was there: {size}"
    return f"{manifest.uri}{revision}: {size} in {fetched.seconds:.1f} s"
