"""Settings of the HTTP server alone; the engine's are in `octavo_engine.config`."""

from pathlib import Path
from typing import Literal

import msgspec

from octavo_engine.logs import LogFormat
from octavo_engine.server.tls import TlsSettings

ToolParserName = Literal["auto", "none", "hermes", "qwen", "llama3_json", "mistral", "json"]
ReasoningParserName = Literal["auto", "none", "think", "bracket-think"]


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    host: str = "0.0.0.0"
    port: int = 8000
    served_model_names: tuple[str, ...]
    """Names that requests may use for the model; the first is the one in answers and metrics."""
    metrics_prefix: str = "vllm:"
    """Of the metrics that have names in common with other engines."""
    chat_template: Path | None = None
    """A Jinja file in place of the model's own template."""
    tool_parser: ToolParserName = "auto"
    """How the model writes tool calls: see `chat_formats`."""
    reasoning_parser: ReasoningParserName = "auto"
    core_process: bool | None = None
    """Whether the core runs in a process of its own; None: on a GPU."""
    log_format: LogFormat = "json"
    drain_s: float = 300.0
    """Seconds that running requests get after the signal to stop."""
    drain_grace_s: float = 2.0
    """Seconds after the signal in which new requests are still taken: load balancers lag."""
    api_keys: tuple[str, ...] = ()
    """Clients must show one of these or of the file; without both, everybody is served."""
    api_key_file: Path | None = None
    """One key a line; read again when it changes."""
    tls: TlsSettings | None = None
    max_body_mib: float = 16.0
    body_timeout_s: float = 60.0
    """Time in which a whole request body must have come."""
    stream_keep_alive_s: float = 15.0
    """Silence in a stream after which a comment is sent."""
    stall_limit_s: float = 60.0
    """The process counts as dead when work waits and the engine made no step for so long."""

    @property
    def model_name(self) -> str:
        return self.served_model_names[0]

    @property
    def max_body_bytes(self) -> int:
        return int(self.max_body_mib * 2**20)
