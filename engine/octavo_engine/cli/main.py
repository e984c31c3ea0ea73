"""The `octavo` command. Each subcommand imports what it needs when it runs."""

import os
import sys
from itertools import pairwise
from pathlib import Path

import typer

from octavo_engine.cli.bench import bench
from octavo_engine.cli.caches import name_the_caches
from octavo_engine.cli.chat import chat
from octavo_engine.cli.fetch import UriArgument, fetch
from octavo_engine.cli.first_process import heed_sigterm
from octavo_engine.cli.fit import fit
from octavo_engine.cli.generate import generate
from octavo_engine.cli.options import with_engine_options
from octavo_engine.cli.serve import serve
from octavo_engine.cli.termination import EXIT_CANNOT_WORK, Termination, write_termination_log
from octavo_engine.cli.threads import share_the_host
from octavo_engine.cli.warm_cache import warm_cache

app = typer.Typer(
    name="octavo",
    help="Serve large language models out of pages of GPU memory.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(with_engine_options(serve))
app.command()(with_engine_options(generate))
app.command()(chat)
app.command()(with_engine_options(warm_cache))
app.command()(with_engine_options(fit))
app.add_typer(bench, name="bench")
app.command()(with_engine_options(fetch, UriArgument))


@app.callback()
def _octavo() -> None:
    """Serve large language models out of pages of GPU memory."""


def main() -> None:
    """Entry point of the console script. A wrong option ends with exit code 2 and a suggestion."""
    heed_sigterm()
    share_the_host(os.environ)
    name_the_caches(os.environ)
    try:
        app()
    except SystemExit as end:
        # The parser's own complaint is the exit's context; only it knows how to word itself.
        word = getattr(end.__context__, "format_message", None)
        if end.code == EXIT_CANNOT_WORK and word is not None:
            _note_usage_error(sys.argv, word())
        raise


def _note_usage_error(argv: list[str], message: str) -> None:
    """An option that does not exist stops us before the options are read: read this one by hand."""
    for option, value in pairwise(argv):
        if option == "--termination-log":
            termination = Termination("InvalidConfiguration", message)
            write_termination_log(termination, Path(value))
