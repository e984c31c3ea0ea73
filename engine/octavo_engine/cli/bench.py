"""`octavo bench serve`: load on any OpenAI-compatible server, and what its clients saw."""

import asyncio
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from octavo_engine.cli.termination import EXIT_CANNOT_WORK, EXIT_FAILED

if TYPE_CHECKING:
    from octavo_engine.bench.load import Target
    from octavo_engine.bench.workload import Planned

bench = typer.Typer(help="Measure a server.", no_args_is_help=True, pretty_exceptions_enable=False)

_LOAD, _SHAPE = "Load", "Requests"
UrlOption = Annotated[str, typer.Option(help="The server's address, with or without /v1.")]
ModelOption = Annotated[str | None, typer.Option(help="Default: the server's first model.")]
KeyOption = Annotated[
    str | None, typer.Option(envvar="OPENAI_API_KEY", help="Key to send, where one is needed.")
]
RateOption = Annotated[
    float | None,
    typer.Option(
        min=0.001,
        help="Open loop: requests a second, at random times (Poisson), however slow the answers.",
        rich_help_panel=_LOAD,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Closed loop: so many clients, each sending the next request after its answer.",
        rich_help_panel=_LOAD,
    ),
]
TraceOption = Annotated[
    Path | None,
    typer.Option(
        help="Open loop with the times and sizes of a recorded trace: CSV with TIMESTAMP, "
        "ContextTokens, GeneratedTokens, or lines of JSON with timestamp_s, input_tokens, "
        "output_tokens.",
        rich_help_panel=_LOAD,
    ),
]
SpeedOption = Annotated[
    float, typer.Option(min=0.001, help="Plays the trace so much faster.", rich_help_panel=_LOAD)
]
NumOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Requests to send; default: 100, or the whole trace.",
        rich_help_panel=_LOAD,
    ),
]
InputOption = Annotated[
    int, typer.Option(min=1, help="Length of a prompt, about tokens.", rich_help_panel=_SHAPE)
]
OutputOption = Annotated[
    int, typer.Option(min=1, help="Length of an answer, tokens.", rich_help_panel=_SHAPE)
]
ChatOption = Annotated[
    bool,
    typer.Option("--chat/--completions", help="Endpoint to ask.", rich_help_panel=_SHAPE),
]
TemperatureOption = Annotated[
    float | None, typer.Option(min=0, max=2, help="0 is greedy.", rich_help_panel=_SHAPE)
]
EosOption = Annotated[
    bool,
    typer.Option(
        help="Ask for answers of full length; not known to OpenAI's own servers.",
        rich_help_panel=_SHAPE,
    ),
]
SeedOption = Annotated[int, typer.Option(help="Of prompts and arrival times.")]
OutOption = Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")]


@bench.callback()
def _bench() -> None:
    """Measure a server."""


@bench.command("serve")
def bench_serve(
    url: UrlOption = "http://127.0.0.1:8000",
    model: ModelOption = None,
    api_key: KeyOption = None,
    rate: RateOption = None,
    concurrency: ConcurrencyOption = None,
    trace: TraceOption = None,
    trace_speed: SpeedOption = 1.0,
    num_requests: NumOption = None,
    input_tokens: InputOption = 512,
    output_tokens: OutputOption = 128,
    chat: ChatOption = False,
    temperature: TemperatureOption = None,
    ignore_eos: EosOption = True,
    seed: SeedOption = 0,
    json_file: OutOption = None,
) -> None:
    """Send requests to any OpenAI-compatible server; print TTFT, ITL and end-to-end percentiles.

    Give one of --rate, --concurrency and --trace; without any: --concurrency 8.
    """
    from octavo_engine.bench.load import Target
    from octavo_engine.bench.workload import synthetic

    if sum(given is not None for given in (rate, concurrency, trace)) > 1:
        raise typer.BadParameter("give only one of --rate, --concurrency and --trace")
    if trace is None:
        plan = synthetic(num_requests or 100, input_tokens, output_tokens, rate, seed)
    else:
        plan = _trace_plan(trace, num_requests, trace_speed)
    is_open = rate is not None or trace is not None
    base_url = url.rstrip("/").removesuffix("/v1") + "/v1"
    target = Target(
        model=model or _first_model(base_url, api_key),
        is_chat=chat,
        temperature=temperature,
        ignores_eos=ignore_eos,
    )
    num_clients = None if is_open else concurrency or 8
    figures = _measure(base_url, api_key, target, plan, num_clients, seed)
    figures["settings"] = {
        "model": target.model,
        "endpoint": target.path,
        "loop": "open" if is_open else "closed",
        "rate": rate,
        "concurrency": num_clients,
        "trace": None if trace is None else trace.name,
        "seed": seed,
    }
    _report(figures, json_file)


def _trace_plan(trace: Path, num_requests: int | None, speed: float) -> "list[Planned]":
    from octavo_engine.bench.workload import TraceError, read_trace

    try:
        return read_trace(trace, num_requests, speed)
    except TraceError as error:
        typer.echo(f"octavo: {error}", err=True)
        raise typer.Exit(EXIT_CANNOT_WORK) from error


def _first_model(base_url: str, api_key: str | None) -> str:
    import httpx

    from octavo_engine.cli.chat import ServerError, first_model

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with httpx.Client(base_url=base_url, headers=headers, timeout=10) as http:
            return first_model(http)
    except (httpx.HTTPError, ServerError) as error:
        typer.echo(f"octavo: {base_url}: {error}", err=True)
        raise typer.Exit(EXIT_FAILED) from error


def _measure(
    base_url: str,
    api_key: str | None,
    target: "Target",
    plan: "list[Planned]",
    num_clients: int | None,
    seed: int,
) -> dict[str, Any]:
    from octavo_engine.bench.http_stream import HttpClient
    from octavo_engine.bench.load import closed_loop, open_loop
    from octavo_engine.bench.report import summary

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    async def run() -> dict[str, Any]:
        client = HttpClient(base_url, headers)
        with Progress(console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("requests", total=len(plan))

            def advance() -> None:
                progress.advance(bar)

            begin_s = time.perf_counter()
            if num_clients is None:
                samples = await open_loop(client, target, plan, seed=seed, on_end=advance)
            else:
                samples = await closed_loop(
                    client, target, plan, num_clients=num_clients, seed=seed, on_end=advance
                )
            duration_s = time.perf_counter() - begin_s
        client.close()
        return summary(samples, duration_s)

    return asyncio.run(run())


def _report(figures: dict[str, Any], json_file: Path | None) -> None:
    """Prints and writes; ends the command with a code that tells of failed requests."""
    _print(figures)
    if json_file is not None:
        json_file.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if figures["failed"]:
        raise typer.Exit(EXIT_FAILED)


def _print(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(
        f"{figures['requests']} requests, {figures['failed']} failed, "
        f"in {figures['duration_s']:.2f} s: {figures['requests_per_s']:.2f} requests/s, "
        f"{figures['output_tokens_per_s']:.1f} output tokens/s, "
        f"{figures['total_tokens_per_s']:.1f} tokens/s with the prompts"
    )
    table = Table("milliseconds", "mean", "p50", "p90", "p95", "p99", "max")
    for name in ("ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"):
        row = figures[name]
        if row is not None:
            table.add_row(name.removesuffix("_ms").upper(), *(f"{v:.2f}" for v in row.values()))
    console.print(table)
    for message, count in figures["errors"].items():
        console.print(f"failed {count} times: {message}", markup=False)
