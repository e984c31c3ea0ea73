"""`octavo generate`: a file of requests in, a file of results out, no server."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from octavo_engine.cli.serve import default_model_name, start_logs
from octavo_engine.cli.termination import EXIT_CANNOT_WORK, EXIT_FAILED, explain
from octavo_engine.config import EngineConfig
from octavo_engine.errors import OctavoError

InputOption = Annotated[
    Path, typer.Option(help="Requests, a line each, in OpenAI's batch format (.jsonl).")
]
OutputOption = Annotated[
    Path, typer.Option(help="Results, a line each; those that are there already are kept.")
]
NamesOption = Annotated[
    list[str] | None,
    typer.Option(help="Name of the model in the requests; default: the folder's."),
]


def generate(
    config: EngineConfig,
    input: InputOption,
    output: OutputOption,
    served_model_name: NamesOption = None,
) -> None:
    """Answer a file of requests. Killed and started again, it goes on where it was."""
    start_logs(None)
    try:
        num_failed = _generate(config, input, output, served_model_name)
    except OctavoError as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        raise typer.Exit(termination.exit_code) from error
    if num_failed:
        raise typer.Exit(EXIT_FAILED)


def _generate(
    config: EngineConfig, input_path: Path, output_path: Path, names: list[str] | None
) -> int:
    """Returns how many requests were answered with an error."""
    from octavo_engine.core.in_process import build_engine
    from octavo_engine.offline.generate import generate_file
    from octavo_engine.text.tokenizer import load_tokenizer

    if not input_path.is_file():
        typer.echo(f"octavo: no such file: {input_path}", err=True)
        raise typer.Exit(EXIT_CANNOT_WORK)
    tokenizer = load_tokenizer(config.model.path)
    engine = build_engine(config)
    try:
        summary = generate_file(
            engine,
            tokenizer,
            input_path,
            output_path,
            served_model_names=tuple(names or [default_model_name(config.model.path)]),
            is_progress_shown=sys.stderr.isatty(),
        )
    finally:
        engine.close_blocking()
    typer.echo(
        f"{summary.num_requests} requests: {summary.num_done_before} done before, "
        f"{summary.num_ok} answered, {summary.num_failed} with an error"
    )
    return summary.num_failed
