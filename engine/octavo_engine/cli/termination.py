"""What a process leaves behind when it cannot start or go on: one sentence and a JSON message.

Kubernetes shows the message file's content in the pod's status, where the operator reads it.
"""

from pathlib import Path
from typing import Literal

import msgspec

from octavo_engine.errors import CheckpointError, ConfigError, EngineStalled
from octavo_engine.fetch.errors import ChecksumMismatch, DoesNotFit, DownloadFailed, SecretMissing

TerminationReason = Literal[
    "ModelUnreadable",
    "InvalidConfiguration",
    "OutOfMemory",
    "GPUFault",
    "EngineStalled",
    "EngineFailed",
    "DownloadFailed",
    "ChecksumMismatch",
    "SecretMissing",
    "DoesNotFit",
]
# A core that died says so as text: torch's classes are known by their names alone.
_OUT_OF_MEMORY = ("OutOfMemoryError", "can't allocate memory", "CUDA error: out of memory")
_GPU_FAULT = ("AcceleratorError", "CUDA error:", "CUDA driver error", "HIP error:", "NCCL error")

EXIT_CANNOT_WORK = 2
"""Starting again with the same settings and files fails again."""
EXIT_FAILED = 1
MAX_MESSAGE_BYTES = 2048
"""Of the whole JSON; Kubernetes cuts all containers of a pod together at 12 KiB."""


class Termination(msgspec.Struct, frozen=True):
    reason: TerminationReason
    message: str

    @property
    def exit_code(self) -> int:
        permanent = self.reason in ("ModelUnreadable", "InvalidConfiguration", "DoesNotFit")
        return EXIT_CANNOT_WORK if permanent else EXIT_FAILED


def explain(error: BaseException) -> Termination:
    """The reason and a sentence for an error that ended the process."""
    sentence = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, ConfigError):
        return Termination("InvalidConfiguration", sentence)
    if isinstance(error, CheckpointError):
        return Termination("ModelUnreadable", sentence)
    if isinstance(error, DownloadFailed):
        return Termination("DownloadFailed", sentence)
    if isinstance(error, ChecksumMismatch):
        return Termination("ChecksumMismatch", sentence)
    if isinstance(error, SecretMissing):
        return Termination("SecretMissing", sentence)
    if isinstance(error, DoesNotFit):
        return Termination("DoesNotFit", sentence)
    if isinstance(error, EngineStalled):
        return Termination("EngineStalled", sentence)
    words = f"{type(error).__name__}: {sentence}"
    if isinstance(error, MemoryError) or any(word in words for word in _OUT_OF_MEMORY):
        return Termination("OutOfMemory", sentence)
    if any(word in words for word in _GPU_FAULT):
        return Termination("GPUFault", sentence)
    return Termination("EngineFailed", words)


def write_termination_log(termination: Termination, path: Path) -> None:
    """Writes the JSON, at most `MAX_MESSAGE_BYTES` long, cutting the message where needed."""
    path.write_bytes(encode(termination))


def encode(termination: Termination) -> bytes:
    content = msgspec.json.encode(termination)
    message = termination.message
    while len(content) > MAX_MESSAGE_BYTES:
        message = message[: len(message) * 3 // 4]
        content = msgspec.json.encode(Termination(termination.reason, message + "…"))
    return content
