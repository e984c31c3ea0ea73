"""`octavo serve`: the options, one for each setting, and what the process does with them."""

import asyncio
import os
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octavo_engine.config import (
    CacheSettings,
    EngineConfig,
    ModelSettings,
    ParallelSettings,
    SchedulerSettings,
)
from octavo_engine.server.settings import ServerSettings
from octavo_engine.termination import explain, write_termination_log

if TYPE_CHECKING:
    from octavo_engine.server.state import Loaded, ServerState

# Defaults come from the settings' own fields.
_CACHE = CacheSettings()
_SCHEDULER = SchedulerSettings()
_PARALLEL = ParallelSettings()
_SERVER = ServerSettings(served_model_names=("",))


class DTypeOption(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"


class DeviceOption(StrEnum):
    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class LogFormatOption(StrEnum):
    JSON = "json"
    CONSOLE = "console"


_MODEL, _SERVING, _MEMORY, _SCHEDULING, _LIFE = "Model", "Serving", "Memory", "Scheduling", "Life"


def serve(
    model: Annotated[
        str, typer.Argument(help="Folder of a Hugging Face checkpoint, or a .gguf file.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on.", rich_help_panel=_SERVING)
    ] = _SERVER.host,
    port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port.", rich_help_panel=_SERVING)
    ] = _SERVER.port,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            help="Name of the model in requests; may be given several times. "
            "Default: the folder's name.",
            rich_help_panel=_SERVING,
        ),
    ] = None,
    dtype: Annotated[
        DTypeOption,
        typer.Option(
            help="Type to compute in; auto: the checkpoint's own.", rich_help_panel=_MODEL
        ),
    ] = DTypeOption.AUTO,
    quantization: Annotated[
        str,
        typer.Option(
            help="How weights are stored; auto: as the checkpoint says.", rich_help_panel=_MODEL
        ),
    ] = "auto",
    max_model_len: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of prompt and output together. Default: the model's own context.",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Sequences running at once. Default: 32 on a CPU, 256 on a GPU.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = _SCHEDULER.max_num_seqs,
    max_num_batched_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens of one step. Default: 2048 on a CPU, 8192 on a GPU.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = _SCHEDULER.max_num_batched_tokens,
    max_queued_requests: Annotated[
        int,
        typer.Option(
            min=1,
            help="Requests that may wait; more are refused with 429.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = _SCHEDULER.max_queued_requests,
    target_itl_ms: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="Inter-token latency to keep: prefill in a step shrinks for it.",
            rich_help_panel=_SCHEDULING,
        ),
    ] = _SCHEDULER.target_itl_ms,
    block_size: Annotated[
        int,
        typer.Option(help="Tokens in a page: 16 to 1024, a power of two.", rich_help_panel=_MEMORY),
    ] = _CACHE.block_size,
    gpu_memory_utilization: Annotated[
        float,
        typer.Option(help="Share of the GPU's memory to use.", rich_help_panel=_MEMORY),
    ] = _CACHE.gpu_memory_utilization,
    cpu_kv_cache_gib: Annotated[
        float, typer.Option(help="Memory for pages on a CPU, GiB.", rich_help_panel=_MEMORY)
    ] = _CACHE.cpu_kv_cache_gib,
    prefix_caching: Annotated[
        bool,
        typer.Option(
            help="Share the pages of equal beginnings of prompts.", rich_help_panel=_MEMORY
        ),
    ] = _CACHE.prefix_caching,
    swap_space_gib: Annotated[
        float,
        typer.Option(help="Host memory for preempted requests, GiB.", rich_help_panel=_MEMORY),
    ] = _CACHE.swap_space_gib,
    tensor_parallel_size: Annotated[
        int, typer.Option(min=1, help="GPUs that share the model.", rich_help_panel=_MODEL)
    ] = _PARALLEL.tensor_parallel_size,
    device: Annotated[
        DeviceOption, typer.Option(help="Where to run.", rich_help_panel=_MODEL)
    ] = DeviceOption.AUTO,
    drain_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time that running requests get to finish after SIGTERM.",
            rich_help_panel=_LIFE,
        ),
    ] = _SERVER.drain_s,
    drain_grace_seconds: Annotated[
        float,
        typer.Option(
            min=0,
            help="Time after SIGTERM in which new requests are still taken.",
            rich_help_panel=_LIFE,
        ),
    ] = _SERVER.drain_grace_s,
    stall_limit_seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            help="/livez fails when work waits and no step was made for so long.",
            rich_help_panel=_LIFE,
        ),
    ] = _SERVER.stall_limit_s,
    max_body_mib: Annotated[
        float,
        typer.Option(min=0.001, help="Largest request body, MiB.", rich_help_panel=_SERVING),
    ] = _SERVER.max_body_mib,
    termination_log: Annotated[
        Path | None,
        typer.Option(
            help="File that says in JSON why the process ended, when it fails.",
            rich_help_panel=_LIFE,
        ),
    ] = None,
    log_format: Annotated[
        LogFormatOption | None,
        typer.Option(help="Default: console on a terminal, else json.", rich_help_panel=_SERVING),
    ] = None,
) -> None:
    """Serve a model over the OpenAI API."""
    config = EngineConfig(
        model=ModelSettings(
            path=model,
            dtype=dtype.value,
            quantization=quantization,
            max_model_len=max_model_len,
            device=device.value,
        ),
        cache=CacheSettings(
            block_size=block_size,
            gpu_memory_utilization=gpu_memory_utilization,
            cpu_kv_cache_gib=cpu_kv_cache_gib,
            prefix_caching=prefix_caching,
            swap_space_gib=swap_space_gib,
        ),
        scheduler=SchedulerSettings(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            target_itl_ms=target_itl_ms,
            max_queued_requests=max_queued_requests,
        ),
        parallel=ParallelSettings(tensor_parallel_size=tensor_parallel_size),
    )
    settings = ServerSettings(
        host=host,
        port=port,
        served_model_names=tuple(served_model_name or [default_model_name(model)]),
        drain_s=drain_seconds,
        drain_grace_s=drain_grace_seconds,
        max_body_mib=max_body_mib,
        stall_limit_s=stall_limit_seconds,
    )
    run_server(config, settings, termination_log, log_format)


def default_model_name(path: str) -> str:
    """The last part of the path, without `.gguf`."""
    name = Path(path).absolute().name
    return name.removesuffix(".gguf")


def run_server(
    config: EngineConfig,
    settings: ServerSettings,
    termination_log: Path | None,
    log_format: LogFormatOption | None,
) -> None:
    """Serves until told to stop; a failure ends the process with its reason and exit code."""
    from octavo_engine.logs import configure_logs
    from octavo_engine.server.run import serve as serve_until_stopped

    is_terminal = sys.stderr.isatty()
    configure_logs(log_format.value if log_format else "console" if is_terminal else "json")

    def load(state: "ServerState") -> "Loaded":
        return load_model(config, state)

    try:
        asyncio.run(serve_until_stopped(settings, load))
    except Exception as error:
        termination = explain(error)
        typer.echo(f"octavo: {termination.message}", err=True)
        if termination_log is not None:
            write_termination_log(termination, termination_log)
        _exit_now(termination.exit_code)
    _exit_now(0)


def load_model(config: EngineConfig, state: "ServerState") -> "Loaded":
    """Tokenizer and engine, each stage timed. Runs on the loading thread."""
    from octavo_engine.in_process import build_engine
    from octavo_engine.server.state import Loaded
    from octavo_engine.tokenizer import load_tokenizer

    began_s = time.monotonic()
    tokenizer = load_tokenizer(config.model.path)
    tokenizer_done_s = time.monotonic()
    state.metrics.observe_startup("tokenizer", tokenizer_done_s - began_s)
    engine = build_engine(config)
    state.metrics.observe_startup("engine", time.monotonic() - tokenizer_done_s)
    return Loaded(engine, tokenizer)


def _exit_now(code: int) -> None:
    """Ends the process although the loading thread or a device library may still be at work."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
