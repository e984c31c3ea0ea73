"""The options of `octavo serve` that concern the server, not the engine: names, ranges, words."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from octavo_engine.server.settings import ReasoningParserName, ToolParserName

SERVING, SECURITY, LIFE = "Serving", "Security", "Life"

HostOption = Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=SERVING)]
PortOption = Annotated[int, typer.Option(min=1, max=65535, help="Port.", rich_help_panel=SERVING)]
NamesOption = Annotated[
    list[str] | None,
    typer.Option(
        help="Name of the model in requests, may be given several times; default: the folder's.",
        rich_help_panel=SERVING,
    ),
]
LogFormatOption = Annotated[
    Literal["json", "console"] | None,
    typer.Option(help="Default: console on a terminal, else json.", rich_help_panel=SERVING),
]
ChatTemplateOption = Annotated[
    Path | None,
    typer.Option(
        help="File with a Jinja chat template, in place of the model's own.",
        rich_help_panel=SERVING,
        show_default=False,
    ),
]
ToolParserOption = Annotated[
    ToolParserName,
    typer.Option(
        help="How the model writes tool calls; auto: as its chat template does.",
        rich_help_panel=SERVING,
    ),
]
ReasoningParserOption = Annotated[
    ReasoningParserName,
    typer.Option(
        help="How the model marks its reasoning; auto: as its chat template does.",
        rich_help_panel=SERVING,
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        help="File with an API key a line; read again when it changes. Keys can also be given in "
        "the variable OCTAVO_API_KEYS, separated by blanks. Without any, everybody is served.",
        rich_help_panel=SECURITY,
    ),
]
CertOption = Annotated[
    Path | None,
    typer.Option(
        help="Serve HTTPS with this certificate chain (PEM); taken anew when it changes.",
        rich_help_panel=SECURITY,
    ),
]
KeyOption = Annotated[
    Path | None,
    typer.Option(help="The certificate's private key (PEM).", rich_help_panel=SECURITY),
]
ClientCaOption = Annotated[
    Path | None,
    typer.Option(
        help="Serve only clients that show a certificate signed by one of these (PEM).",
        rich_help_panel=SECURITY,
    ),
]
BodyOption = Annotated[
    float, typer.Option(min=0.001, help="Largest request body, MiB.", rich_help_panel=SECURITY)
]
DrainOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Time that running requests get to finish after SIGTERM.",
        rich_help_panel=LIFE,
    ),
]
GraceOption = Annotated[
    float,
    typer.Option(
        min=0,
        help="Time after SIGTERM in which new requests are still taken.",
        rich_help_panel=LIFE,
    ),
]
MetricsPrefixOption = Annotated[
    str,
    typer.Option(
        help="Prefix of the metrics whose names other engines share; see engine/METRICS.md.",
        rich_help_panel=SERVING,
    ),
]
CoreProcessOption = Annotated[
    bool | None,
    typer.Option(
        "--core-process/--no-core-process",
        help="Run the engine's core in a process of its own; default: on a GPU.",
        rich_help_panel=LIFE,
        show_default=False,
    ),
]
StallOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="/livez fails when work waits and no step was made for so long.",
        rich_help_panel=LIFE,
    ),
]
KeepAliveOption = Annotated[
    float,
    typer.Option(
        min=0.1,
        help="Silence in a stream after which a comment is sent, so that proxies keep it open.",
        rich_help_panel=LIFE,
    ),
]
TerminationOption = Annotated[
    Path | None,
    typer.Option(
        help="File that says in JSON why the process ended, when it fails.",
        rich_help_panel=LIFE,
    ),
]
