"""The two files of a batch: requests in, results out, in OpenAI's batch format.

A results file only ever grows by whole lines, each written with one call; a line that was cut short
by a kill is removed on the next start. A request counts as done when its line is complete.
"""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from octavo_engine.errors import RequestError


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the requests file."""

    custom_id: str
    method: str = "POST"
    url: str
    body: dict[str, Any]


class BatchResponse(msgspec.Struct, frozen=True, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the results file."""

    id: str
    custom_id: str
    response: BatchResponse
    error: None = None
    """OpenAI's field for requests that were never run; here every request is run."""


class _Done(msgspec.Struct):
    custom_id: str


def read_requests(path: Path) -> Iterator[BatchRequest]:
    """Line by line; empty lines are skipped. Raises RequestError naming file, line and fault."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                yield _parse(line, path, number)


def check_requests(path: Path) -> list[str]:
    """The ids of all requests in order, after a look at every line: nothing is run when one is
    broken or two have the same id. Raises RequestError."""
    ids: dict[str, None] = {}
    for request in read_requests(path):
        if request.custom_id in ids:
            raise RequestError(
                f"{path}: custom_id {request.custom_id!r} is there twice", "custom_id"
            )
        ids[request.custom_id] = None
    return list(ids)


def _parse(line: bytes, path: Path, number: int) -> BatchRequest:
    try:
        request = msgspec.json.decode(line, type=BatchRequest)
    except msgspec.DecodeError as error:
        raise RequestError(f"{path}, line {number}: {error}") from error
    if request.method != "POST":
        raise RequestError(
            f"{path}, line {number}: method {request.method!r} is not POST", "method"
        )
    return request


class ResultsFile:
    """Appends results; one process at a time. A context manager."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> "ResultsFile":
        """Raises RequestError when another process writes to the file."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o644)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._fd)
            raise RequestError(f"{self._path} is being written by another process") from error
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.fsync(self._fd)
        os.close(self._fd)

    def recover(self) -> set[str]:
        """Ids of the requests that are done; cuts off a last line that is incomplete.

        Raises RequestError when a complete line is none of ours: the file is something else.
        """
        done: set[str] = set()
        complete_bytes = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    os.ftruncate(self._fd, complete_bytes)
                    break
                complete_bytes += len(line)
                done.add(self._id_in(line, number))
        return done

    def _id_in(self, line: bytes, number: int) -> str:
        try:
            return msgspec.json.decode(line, type=_Done).custom_id
        except msgspec.DecodeError as error:
            raise RequestError(
                f"{self._path}, line {number} is no result of a batch: {error}"
            ) from error

    def append(self, result: BatchResult) -> None:
        line = memoryview(msgspec.json.encode(result) + b"\n")
        while line:
            line = line[os.write(self._fd, line) :]
