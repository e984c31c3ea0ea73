"""How an error travels from one process to another: its kind and its sentence."""

from typing import Literal

from octavo_engine.errors import CheckpointError, ConfigError

FailureKind = Literal["ConfigError", "CheckpointError", "OutOfMemory", "other"]


def kind_of(error: BaseException) -> FailureKind:
    if isinstance(error, ConfigError):
        return "ConfigError"
    if isinstance(error, CheckpointError):
        return "CheckpointError"
    # torch's own class is not imported here: its name is enough.
    is_oom = isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
    return "OutOfMemory" if is_oom or "can't allocate memory" in str(error) else "other"


def sentence_of(error: BaseException) -> str:
    return str(error) or type(error).__name__


def error_of(kind: FailureKind, message: str) -> Exception | None:
    """The error to raise on the other side; None: of no kind that is known there."""
    match kind:
        case "ConfigError":
            return ConfigError(message)
        case "CheckpointError":
            return CheckpointError(message)
        case "OutOfMemory":
            return MemoryError(message)
    return None
