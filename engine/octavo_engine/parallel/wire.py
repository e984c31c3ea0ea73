"""What rank 0 and the other ranks say to each other, as msgpack. No sockets."""

import msgspec

from octavo_engine.batch import Batch
from octavo_engine.config import EngineConfig
from octavo_engine.core.failures import FailureKind
from octavo_engine.logs import LogFormat
from octavo_engine.messages import EngineInfo

# From rank 0.


class Boot(msgspec.Struct, tag=True, frozen=True):
    """The first message: load your share of this."""

    config: EngineConfig
    device: str
    """cpu or cuda, the same on all ranks."""
    log_format: LogFormat


class Step(msgspec.Struct, tag=True, frozen=True):
    plan: bytes
    """The encoded `Batch`."""
    chain: bytes
    """`PlanChain` of all steps up to this one."""


class Beat(msgspec.Struct, tag=True, frozen=True):
    """Sent several times a second, so that silence means something."""


class TellStack(msgspec.Struct, tag=True, frozen=True):
    """Write the stacks of all your threads to the log."""


class Close(msgspec.Struct, tag=True, frozen=True):
    """Finish the steps that were launched, then exit."""


Command = Boot | Step | Beat | TellStack | Close

# From the other ranks.


class Hello(msgspec.Struct, tag=True, frozen=True):
    rank: int
    size: int
    """Ranks there are, as this one was told."""
    version: str


class Ready(msgspec.Struct, tag=True, frozen=True):
    rank: int
    info: EngineInfo


class Alive(msgspec.Struct, tag=True, frozen=True):
    """The answer to time passing: sent several times a second."""

    rank: int


class Done(msgspec.Struct, tag=True, frozen=True):
    """What a rank made of a step, to be compared with what rank 0 made of it."""

    rank: int
    step_id: int
    token_ids: list[int]
    is_graph: bool
    num_padded_rows: int


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The last message of a rank that cannot go on."""

    rank: int
    kind: FailureKind
    message: str


Report = Hello | Ready | Alive | Done | Failed

encode = msgspec.msgpack.Encoder().encode
decode_command = msgspec.msgpack.Decoder(Command).decode
decode_report = msgspec.msgpack.Decoder(Report).decode
decode_plan = msgspec.msgpack.Decoder(Batch).decode
