"""`octavo serve`: the server's own options, and what the process does with them."""

import gc
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from octavo_engine.cli.config_file import ConfigFileOption
from octavo_engine.cli.serve_options import (
    BodyOption,
    CertOption,
    ChatTemplateOption,
    ClientCaOption,
    CoreProcessOption,
    DrainOption,
    GraceOption,
    HostOption,
    KeepAliveOption,
    KeyFileOption,
    KeyOption,
    LogFormatOption,
    MetricsPrefixOption,
    NamesOption,
    PortOption,
    ReasoningParserOption,
    StallOption,
    TerminationOption,
    ToolParserOption,
)
from octavo_engine.cli.termination import explain, write_termination_log
from octavo_engine.config import Device, EngineConfig, ParallelSettings
from octavo_engine.errors import ConfigError
from octavo_engine.logs import LogFormat, configure_logs
from octavo_engine.progress import Stage
from octavo_engine.server.settings import ServerSettings
from octavo_engine.server.tls import TlsSettings

if TYPE_CHECKING:
    from octavo_engine.core.process_client import ProcessEngine
    from octavo_engine.messages import EngineClient
    from octavo_engine.parallel.setup import RankSetup
    from octavo_engine.server.state import Loaded, ServerState

KEYS_VARIABLE = "OCTAVO_API_KEYS"
_DEFAULTS = ServerSettings(served_model_names=("",))


def serve(
    config: EngineConfig,
    config_file: ConfigFileOption = None,
    host: HostOption = _DEFAULTS.host,
    port: PortOption = _DEFAULTS.port,
    served_model_name: NamesOption = None,
    log_format: LogFormatOption = None,
    chat_template: ChatTemplateOption = None,
    tool_parser: ToolParserOption = _DEFAULTS.tool_parser,
    reasoning_parser: ReasoningParserOption = _DEFAULTS.reasoning_parser,
    api_key_file: KeyFileOption = None,
    tls_cert_file: CertOption = None,
    tls_key_file: KeyOption = None,
    tls_client_ca_file: ClientCaOption = None,
    max_body_mib: BodyOption = _DEFAULTS.max_body_mib,
    drain_seconds: DrainOption = _DEFAULTS.drain_s,
    drain_grace_seconds: GraceOption = _DEFAULTS.drain_grace_s,
    core_process: CoreProcessOption = None,
    stall_limit_seconds: StallOption = _DEFAULTS.stall_limit_s,
    keep_alive_seconds: KeepAliveOption = _DEFAULTS.stream_keep_alive_s,
    metrics_prefix: MetricsPrefixOption = _DEFAULTS.metrics_prefix,
    termination_log: TerminationOption = None,
) -> None:
    """Serve a model over the OpenAI API.

    Every option can stand in a YAML file too: see --config, which is read before the others.

    SIGTERM drains: running requests finish, new ones are refused; a second one hastens it.
    """
    settings = ServerSettings(
        host=host,
        port=port,
        served_model_names=tuple(served_model_name or [default_model_name(config.model.path)]),
        chat_template=chat_template,
        tool_parser=tool_parser,
        reasoning_parser=reasoning_parser,
        api_keys=tuple(os.environ.get(KEYS_VARIABLE, "").split()),
        api_key_file=api_key_file,
        tls=_tls_settings(tls_cert_file, tls_key_file, tls_client_ca_file),
        max_body_mib=max_body_mib,
        drain_s=drain_seconds,
        drain_grace_s=drain_grace_seconds,
        core_process=core_process,
        metrics_prefix=metrics_prefix,
        log_format=chosen_log_format(log_format),
        stall_limit_s=stall_limit_seconds,
        stream_keep_alive_s=keep_alive_seconds,
    )
    start_logs(settings.log_format)
    if (rank := _rank_above_0(config.parallel)) is not None:
        _exit_now(_run_rank(rank))
    _exit_now(_run_server(config, settings, termination_log))


def _rank_above_0(parallel: ParallelSettings) -> "RankSetup | None":
    """As what a launcher of distributed programs has started this process; None: as the server."""
    from octavo_engine.parallel.setup import setup_from_launcher

    if parallel.tensor_parallel_size == 1:
        return None
    try:
        setup = setup_from_launcher(os.environ)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from error
    return None if setup is None or setup.rank == 0 else setup


def _run_rank(setup: "RankSetup") -> int:
    """A share of the model, by rank 0's settings; serves nothing itself."""
    from octavo_engine.parallel.rank_process import run_rank

    try:
        return run_rank(setup)
    except Exception as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        return termination.exit_code


def _tls_settings(
    cert_file: Path | None, key_file: Path | None, client_ca_file: Path | None
) -> TlsSettings | None:
    if cert_file is None and key_file is None and client_ca_file is None:
        return None
    if cert_file is None or key_file is None:
        raise typer.BadParameter("TLS needs both --tls-cert-file and --tls-key-file")
    return TlsSettings(cert_file=cert_file, key_file=key_file, client_ca_file=client_ca_file)


def default_model_name(path: str) -> str:
    """The last part of the path, without `.gguf`."""
    return Path(path).absolute().name.removesuffix(".gguf")


def start_logs(log_format: LogFormat | None) -> None:
    configure_logs(chosen_log_format(log_format))


def chosen_log_format(asked: LogFormat | None) -> LogFormat:
    return asked or ("console" if sys.stderr.isatty() else "json")


def _run_server(
    config: EngineConfig, settings: ServerSettings, termination_log: Path | None
) -> int:
    """Serves until told to stop; returns the exit code. A failure leaves its last words."""
    from octavo_engine.server.loop import run_on_fast_loop
    from octavo_engine.server.run import serve as serve_until_stopped

    def load(state: "ServerState") -> "Loaded":
        return load_model(config, state)

    try:
        run_on_fast_loop(serve_until_stopped(settings, load))
    except Exception as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        if termination_log is not None:
            write_termination_log(termination, termination_log)
        return termination.exit_code
    return 0


def load_model(config: EngineConfig, state: "ServerState") -> "Loaded":
    """Tokenizer and engine. Runs on the loading thread."""
    from octavo_engine.server.chat_formats import choose_formats
    from octavo_engine.server.state import Loaded
    from octavo_engine.structured.compiler import GrammarCompiler
    from octavo_engine.text.tokenizer import load_tokenizer

    def report(stage: Stage, share: float) -> None:
        state.startup.report(stage, share, time.monotonic())

    settings = state.settings
    apart = _start_apart(config, settings)
    report("tokenizer", 0.0)
    try:
        tokenizer = load_tokenizer(config.model.path)
        if settings.chat_template is not None:
            tokenizer.take_chat_template(settings.chat_template)
        formats = choose_formats(settings.tool_parser, settings.reasoning_parser, tokenizer)
    except BaseException:
        if apart is not None:
            apart.cancel()
        raise
    compiler = GrammarCompiler(lambda: tokenizer)
    report("weights", 0.0)
    engine: EngineClient
    if apart is not None:
        apart.load(report)
        engine = apart
    else:
        from octavo_engine.core.in_process import build_engine

        engine = build_engine(config, compiler, report, settings.log_format)
    # What loading has left is there for good. The collector would walk its 350,000 objects now and
    # then, and the event loop would stand still for 0.2 s.
    gc.collect()
    gc.freeze()
    return Loaded(engine, tokenizer, formats, compiler)


def _start_apart(config: EngineConfig, settings: ServerSettings) -> "ProcessEngine | None":
    """The core's process, which loads beside the tokenizer; None: it is to run in this one."""
    if not is_core_apart(settings.core_process, config.model.device):
        return None
    from octavo_engine.core.process_client import ProcessEngine

    return ProcessEngine(config, settings.log_format)


def is_core_apart(asked: bool | None, device: Device) -> bool:
    """Whether the core gets a process of its own: by default on a GPU, which it must keep busy."""
    if asked is not None:
        return asked
    from octavo_engine.server.gpu import has_gpu

    return device == "cuda" or (device == "auto" and has_gpu())


def _exit_now(code: int) -> None:
    """Ends the process although the loading thread or a device library may still be at work."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
