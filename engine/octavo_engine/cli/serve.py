"""`octavo serve`: the server's own options, and what the process does with them."""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from octavo_engine.cli.termination import explain, write_termination_log
from octavo_engine.config import EngineConfig
from octavo_engine.server.settings import ServerSettings

if TYPE_CHECKING:
    from octavo_engine.server.state import Loaded, ServerState

_SERVING, _LIFE = "Serving", "Life"
_DEFAULTS = ServerSettings(served_model_names=("",))

HostOption = Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=_SERVING)]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="Port.", rich_help_panel=_SERVING)]
NamesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of the model in requests, may be given several times; default: the folder's.",
        rich_help_panel=_SERVING,
    ),
]
BodyOption = Annotated[
    float, typer.Option(min=0.001, help="Largest request body, MiB.", rich_help_panel=_SERVING)
]
LogFormatOption = Annotated[
    Literal["json", "console"] | None,
    typer.Option(help="Default: console on a terminal, else json.", rich_help_panel=_SERVING),
]
DrainOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Time that running requests get to finish after SIGTERM.",
        rich_help_panel=_LIFE,
    ),
]
GraceOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Time after SIGTERM in which new requests are still taken.",
        rich_help_panel=_LIFE,
    ),
]
StallOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="/livez fails when work waits and no step was made for so long.",
        rich_help_panel=_LIFE,
    ),
]
TerminationOption = Annotated[
    Path | None,
    typer.Option(
        help="File that says in JSON why the process ended, when it fails.",
        rich_help_panel=_LIFE,
    ),
]


def serve(
    config: EngineConfig,
    host: HostOption = _DEFAULTS.host,
    port: PortOption = _DEFAULTS.port,
    served_model_name: NamesOption = None,
    max_body_mib: BodyOption = _DEFAULTS.max_body_mib,
    log_format: LogFormatOption = None,
    drain_seconds: DrainOption = _DEFAULTS.drain_s,
    drain_grace_seconds: GraceOption = _DEFAULTS.drain_grace_s,
    stall_limit_seconds: StallOption = _DEFAULTS.stall_limit_s,
    termination_log: TerminationOption = None,
) -> None:
    """Serve a model over the OpenAI API."""
    settings = ServerSettings(
        host=host,
        port=port,
        served_model_names=tuple(served_model_name or [default_model_name(config.model.path)]),
        drain_s=drain_seconds,
        drain_grace_s=drain_grace_seconds,
        max_body_mib=max_body_mib,
        stall_limit_s=stall_limit_seconds,
    )
    start_logs(log_format)
    _exit_now(_run_server(config, settings, termination_log))


def default_model_name(path: str) -> str:
    """The last part of the path, without `.gguf`."""
    return Path(path).absolute().name.removesuffix(".gguf")


def start_logs(log_format: Literal["json", "console"] | None) -> None:
    from octavo_engine.logs import configure_logs

    configure_logs(log_format or ("console" if sys.stderr.isatty() else "json"))


def _run_server(
    config: EngineConfig, settings: ServerSettings, termination_log: Path | None
) -> int:
    """Serves until told to stop; returns the exit code. A failure leaves its last words."""
    from octavo_engine.server.run import serve as serve_until_stopped

    def load(state: "ServerState") -> "Loaded":
        return load_model(config, state)

    try:
        asyncio.run(serve_until_stopped(settings, load))
    except Exception as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        if termination_log is not None:
            write_termination_log(termination, termination_log)
        return termination.exit_code
    return 0


def load_model(config: EngineConfig, state: "ServerState") -> "Loaded":
    """Tokenizer and engine, each stage timed. Runs on the loading thread."""
    from octavo_engine.core.in_process import build_engine
    from octavo_engine.server.state import Loaded
    from octavo_engine.text.tokenizer import load_tokenizer

    began_s = time.monotonic()
    state.startup_stage = "tokenizer"
    tokenizer = load_tokenizer(config.model.path)
    tokenizer_done_s = time.monotonic()
    state.metrics.observe_startup("tokenizer", tokenizer_done_s - began_s)
    state.startup_stage = "engine"
    engine = build_engine(config)
    state.metrics.observe_startup("engine", time.monotonic() - tokenizer_done_s)
    return Loaded(engine, tokenizer)


def _exit_now(code: int) -> None:
    """Ends the process although the loading thread or a device library may still be at work."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
