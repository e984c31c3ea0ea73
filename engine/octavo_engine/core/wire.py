"""What the server's process and the core's say to each other, as msgpack. No sockets."""

import msgspec

from octavo_engine.config import EngineConfig
from octavo_engine.core.failures import FailureKind
from octavo_engine.logs import LogFormat
from octavo_engine.messages import EngineInfo, EngineRequest, EngineStats, RequestDelta
from octavo_engine.progress import Stage

# To the core.


class Boot(msgspec.Struct, tag=True, frozen=True):
    """Load this. In a file that is there before the core's process is."""

    config: EngineConfig
    log_format: LogFormat


class Submit(msgspec.Struct, tag=True, frozen=True):
    request: EngineRequest


class Abort(msgspec.Struct, tag=True, frozen=True):
    request_id: str


class Finish(msgspec.Struct, tag=True, frozen=True):
    request_id: str
    index: int
    stop_reason: str


class Close(msgspec.Struct, tag=True, frozen=True):
    """Abort what is left, then exit."""


Command = Submit | Abort | Finish | Close

# From the core.


class Loading(msgspec.Struct, tag=True, frozen=True):
    stage: Stage
    share: float


class Ready(msgspec.Struct, tag=True, frozen=True):
    info: EngineInfo


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The load failed: the kind of error, so that it can be raised again on the other side."""

    kind: FailureKind
    message: str


class Deltas(msgspec.Struct, tag=True, frozen=True):
    """One message a step for all requests."""

    deltas: list[RequestDelta]


class Beat(msgspec.Struct, tag=True, frozen=True):
    """Sent several times a second, so that silence means something; None while loading."""

    stats: EngineStats | None


class Died(msgspec.Struct, tag=True, frozen=True):
    """The last message of a core that cannot go on."""

    death: str


Report = Loading | Ready | Failed | Deltas | Beat | Died

encode = msgspec.msgpack.Encoder().encode
decode_boot = msgspec.msgpack.Decoder(Boot).decode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
